"""Schedule the trials of a sweep: when they start, and which ones stop early."""

import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from hgpo_rllib.config import RunConfig
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.placement import Amounts
from hgpo_rllib.run.demand import Supply, concurrent_trials
from hgpo_rllib.run.directory import RunDirectory

ITERATION = "iteration"
"""Key of a trial's report to Tune: training iterations completed."""
SUCCESS = "held_out_success"
"""Key of a trial's report to Tune: success rate over all splits in its latest evaluation."""
REDUCTION = 2  # half of the compared trials continue


class TrialsThatFit(BasicVariantGenerator):
    """Tune's grid search, which starts a trial only if all its processes fit the cluster.

    A trial's policy server is outside of its placement group. Tune alone would start trials on the
    CPUs that policy servers of other trials are waiting for. Nodes are counted before every trial,
    so nodes can join or leave during a sweep.
    """

    def __init__(self, trials: Sequence[list[Amounts]]) -> None:
        """Create the search for trials with the processes of `trial_processes`."""
        super().__init__()
        self._trials = trials

    def next_trial(self) -> TuneTrial | None:
        """See `BasicVariantGenerator`."""
        nodes = alive_nodes()
        count = min(concurrent_trials(trial, nodes) for trial in self._trials)
        self.max_concurrent = max(1, count)
        return super().next_trial()


def alive_nodes() -> list[Supply]:
    """Return the total resources of each live node of the connected cluster."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def make_scheduler(
    name: str | None, configs: Iterable[RunConfig], finished: Iterable[Path]
) -> TrialScheduler:
    """Return Tune's scheduler of this name.

    Args:
        name: ``asha``, or None to run every trial to completion.
        configs: settings of all trials.
        finished: finished run directories, with which new trials are compared.
    """
    if name is None:
        return FIFOScheduler()
    configs = list(configs)
    scheduler = ASHAScheduler(
        time_attr=ITERATION,
        metric=SUCCESS,
        mode="max",
        grace_period=max(config.evaluation.interval for config in configs),
        max_t=max(config.iterations for config in configs),
        reduction_factor=REDUCTION,
    )
    for path in finished:
        _remember(scheduler, path)
    return scheduler


def report(row: dict[str, Any]) -> dict[str, Any]:
    """Return the report to Tune for an evaluation, given its row over all splits."""
    return {ITERATION: row["iteration"], SUCCESS: row["success_rate"]}


def _remember(scheduler: TrialScheduler, run: Path) -> None:
    """Pass the evaluations of a finished run to the scheduler."""
    trial: Any = types.SimpleNamespace(trial_id=run.name)
    scheduler.on_trial_add(None, trial)
    for row in RunDirectory(run).evaluation_rows():
        if row["split"] == ALL:
            scheduler.on_trial_result(None, trial, report(row))
