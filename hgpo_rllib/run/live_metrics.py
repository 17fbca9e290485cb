"""Export the metrics of a running command as Ray gauges, for Prometheus and Grafana."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ray.util.metrics import Gauge

from hgpo_rllib.metrics import EVALUATION_METRICS, METRICS, declared

REFRESH_SECONDS = 5.0
"""Ray reports gauges every 10 seconds, and drops a gauge 20 seconds after it was last set."""
IN_FLIGHT = "hgpo_prompts_in_flight"


@dataclass(frozen=True)
class Sample:
    """Value of a gauge for one set of tags."""

    name: str
    tags: Mapping[str, str]
    value: float


def iteration_samples(row: Mapping[str, Any], run: str) -> Iterator[Sample]:
    """Yield the samples of a row of metrics.jsonl, without values that are None."""
    for name, value in row.items():
        if isinstance(value, int | float):
            metric, tags = declared(name)
            yield Sample(metric.gauge, {"run": run, **tags}, float(value))


def evaluation_samples(rows: Iterable[Mapping[str, Any]], run: str) -> Iterator[Sample]:
    """Yield the samples of an evaluation, given one row of evaluation.jsonl per split."""
    for row in rows:
        for metric in EVALUATION_METRICS:
            if (value := row.get(metric.name)) is not None:
                tags = {"run": run, "split": row["split"]}
                yield Sample(evaluation_gauge(metric.name), tags, float(value))


def evaluation_gauge(name: str) -> str:
    """Return the name of the gauge of an evaluation's metric."""
    return f"hgpo_evaluation_{name.removeprefix('evaluation_')}"


def _gauges() -> dict[str, Gauge]:
    """Create all gauges, by name."""
    gauges = {
        metric.gauge: Gauge(
            metric.gauge,
            metric.description,
            tag_keys=("run", "k") if "{k}" in metric.name else ("run",),
        )
        for metric in METRICS.values()
    }
    for metric in EVALUATION_METRICS:
        name = evaluation_gauge(metric.name)
        gauges[name] = Gauge(name, metric.description, tag_keys=("run", "split"))
    gauges[IN_FLIGHT] = Gauge(
        IN_FLIGHT, "prompts that wait for a response of the policy server", tag_keys=("run",)
    )
    return gauges


class LiveMetrics:
    """Export the latest iteration and evaluation of one run, inside a ``with`` block.

    A thread sets the gauges to the published values repeatedly, because an iteration of a large
    model takes longer than Ray keeps a gauge. Without Ray's metrics agent this has no effect.
    """

    def __init__(self, run: str, prompts_in_flight: Callable[[], int]):
        """Use `run` as the tag's value; `prompts_in_flight` is called from another thread."""
        self._run = run
        self._prompts_in_flight = prompts_in_flight
        self._gauges = _gauges()
        self._iteration: list[Sample] = []
        self._evaluation: list[Sample] = []
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

    def publish_iteration(self, row: Mapping[str, Any]) -> None:
        """Export this row of metrics.jsonl."""
        self._iteration = list(iteration_samples(row, self._run))

    def publish_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Export these rows of evaluation.jsonl."""
        self._evaluation = list(evaluation_samples(rows, self._run))

    def _refresh(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            waiting = Sample(IN_FLIGHT, {"run": self._run}, self._prompts_in_flight())
            for sample in (*self._iteration, *self._evaluation, waiting):
                self._gauges[sample.name].set(sample.value, tags=dict(sample.tags))
