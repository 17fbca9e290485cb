"""When the trials of a sweep begin, and which of them end early."""

import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from hgpo_rllib.config import RunConfig
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.run.demand import Demand, Supply, concurrent_trials
from hgpo_rllib.run.directory import RunDirectory

ITERATION = "iteration"
"""Key of a trial's report to Tune: training iterations of the run so far."""
SUCCESS = "held_out_success"
"""Key of a trial's report to Tune: success in its latest evaluation, all splits together."""
REDUCTION = 2  # trials of an evaluation that is compared go on by half


class TrialsThatFit(BasicVariantGenerator):
    """Tune's grid, a trial whenever the cluster holds one more.

    A trial's policy server is outside of its placement group, so that Tune alone would start
    trials that take the CPUs which the servers of others wait for. Nodes are counted at every
    trial: those that join or leave while a sweep goes on count.
    """

    def __init__(self, demand: Demand) -> None:
        """`demand` is that of one trial."""
        super().__init__()
        self._demand = demand

    def next_trial(self) -> TuneTrial | None:
        """See `BasicVariantGenerator`."""
        self.max_concurrent = max(1, concurrent_trials(self._demand, alive_nodes()))
        return super().next_trial()


def alive_nodes() -> list[Supply]:
    """What each node of the connected cluster has, in use or not."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def is_crowded(demand: Demand) -> bool:
    """Whether others use what even one trial needs: it then has to wait."""
    free = ray.available_resources()
    return any(free.get(name, 0) < amount for name, amount in demand.total.items())


def make_scheduler(
    name: str | None, configs: Iterable[RunConfig], finished: Iterable[Path]
) -> TrialScheduler:
    """Tune's scheduler of this name; None: every trial runs to its end.

    Args:
        name: None or ``asha``.
        configs: settings of all trials.
        finished: run directories that are not run again, but that others are compared with.
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
    """What Tune is told of an evaluation, the line of all splits."""
    return {ITERATION: row["iteration"], SUCCESS: row["success_rate"]}


def _remember(scheduler: TrialScheduler, run: Path) -> None:
    """Tell the scheduler what a run of an interrupted sweep had reached."""
    trial: Any = types.SimpleNamespace(trial_id=run.name)
    scheduler.on_trial_add(None, trial)
    for row in RunDirectory(run).evaluation_rows():
        if row["split"] == ALL:
            scheduler.on_trial_result(None, trial, report(row))
