"""What the trials of a sweep need of a cluster, and how many of them it holds at a time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run.estimate import resources

Supply = Mapping[str, float]
"""What a node has, by Ray's names of resources."""
LEARNER_CPUS = 1  # what RLlib reserves for an algorithm's main process when it runs under Tune


@dataclass(frozen=True)
class Demand:
    """Resources of one trial: those of its own process, and those of its policy server's."""

    learner: dict[str, float]
    server: dict[str, float]

    @property
    def total(self) -> dict[str, float]:
        """Both together."""
        return {name: self.learner[name] + self.server[name] for name in self.learner}

    def __str__(self) -> str:
        parts = [
            f"{amount:g} {name} (learner {self.learner[name]:g}, "
            f"policy server {self.server[name]:g})"
            for name, amount in self.total.items()
            if amount
        ]
        return " and ".join(parts)


def trial_demand(configs: Iterable[RunConfig]) -> Demand:
    """The most that any of these runs needs of each resource."""
    learner = {"CPU": float(LEARNER_CPUS), "GPU": 0.0}
    server = {"CPU": 0.0, "GPU": 0.0}
    for config in configs:
        main, replica = resources(config)
        learner["GPU"] = max(learner["GPU"], main.gpus)
        server["CPU"] = max(server["CPU"], replica.count * replica.cpus)
        server["GPU"] = max(server["GPU"], replica.count * replica.gpus)
    return Demand(learner, server)


def concurrent_trials(demand: Demand, nodes: Sequence[Supply]) -> int:
    """Trials that run at a time; a trial stays on one node, where its weights are in memory.

    Raises:
        ConfigError: no node holds one: Ray would wait forever.
    """
    count = sum(_fitting(demand.total, node) for node in nodes)
    if count == 0:
        raise ConfigError(
            f"a trial needs {demand} on one node and the cluster has {supply(nodes)}; "
            f"lower policy_server.* or cluster.* settings"
        )
    return count


def supply(nodes: Sequence[Supply]) -> str:
    """``2 CPU`` of one node; several are listed."""
    return ", ".join(
        " and ".join(f"{node.get(name, 0):g} {name}" for name in ("CPU", "GPU") if name in node)
        or "neither CPU nor GPU"
        for node in nodes
    )


def _fitting(total: Supply, node: Supply) -> int:
    ratios = [node.get(name, 0) / amount for name, amount in total.items() if amount]
    return int(min(ratios) + 1e-9)  # shares of a GPU do not add up exactly
