"""Export the metrics of a running command as Ray gauges, for Prometheus and Grafana."""

import threading
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple, Self

from ray.util.metrics import Gauge

from hgpo_rllib.metrics import EVALUATION_METRICS, find_metric

REFRESH_SECONDS = 5.0
"""Ray reports gauges every 10 seconds, and drops a gauge 20 seconds after it was last set."""
IN_FLIGHT = "hgpo_prompts_in_flight"


class Sample(NamedTuple):
    """Value of a gauge for one set of tags."""

    name: str
    tags: dict[str, str]
    value: float
    description: str


def evaluation_gauge(name: str) -> str:
    """Return the name of the gauge of an evaluation's metric."""
    return f"hgpo_evaluation_{name.removeprefix('evaluation_')}"


def sample(name: str, value: float, run: str) -> Sample:
    """Return the sample of a number, by its name in `hgpo_rllib.run.metrics.scalars`.

    Raises:
        KeyError: no such metric is declared.
    """
    if name.startswith("evaluation/"):
        _, split, evaluated = name.split("/")
        tags, metric = {"split": split}, EVALUATION_METRICS[evaluated]
        return Sample(evaluation_gauge(evaluated), {"run": run, **tags}, value, metric.description)
    metric, tags = find_metric(name)
    return Sample(metric.gauge, {"run": run, **tags}, value, metric.description)


class LiveMetrics:
    """Export the latest iteration and evaluation of one run, inside a ``with`` block.

    A thread sets the gauges to the published values repeatedly, because an iteration of a large
    model takes longer than Ray keeps a gauge. Without Ray's metrics agent this has no effect.
    """

    def __init__(self, run: str, prompts_in_flight: Callable[[], int]):
        """Use `run` as the tag's value; `prompts_in_flight` is called from another thread."""
        self._run = run
        self._prompts_in_flight = prompts_in_flight
        self._gauges: dict[str, Gauge] = {}
        self._samples: dict[bool, list[Sample]] = {False: [], True: []}  # True: of an evaluation
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="live-metrics", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread that sets the gauges."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread, so that Ray can be shut down."""
        self._ended.set()
        self._thread.join()

    def publish(self, values: Mapping[str, float]) -> None:
        """Export the numbers of an iteration or an evaluation instead of those of the last one."""
        samples = [sample(name, value, self._run) for name, value in values.items()]
        self._samples["split" in samples[0].tags] = samples

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            text = "prompts that wait for a response of the policy server"
            in_flight = Sample(IN_FLIGHT, {"run": self._run}, self._prompts_in_flight(), text)
            for name, tags, value, description in [in_flight, *chain(*self._samples.values())]:
                if name not in self._gauges:
                    self._gauges[name] = Gauge(name, description, tag_keys=tuple(tags))
                self._gauges[name].set(value, tags=tags)
