"""Compute the resources of a sweep's trials and how many trials fit a cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run.estimate import resources

Supply = Mapping[str, float]
"""Amounts of a node's resources, by Ray's resource names."""
LEARNER_CPUS = 1  # reserved by RLlib for an algorithm's main process under Tune


SLACK = 1e-9  # tolerance for sums of fractional GPUs


@dataclass(frozen=True)
class Demand:
    """Resources of one trial: of its own process, and of each replica of its policy server."""

    learner: dict[str, float]
    replica: dict[str, float]
    replicas: int = 1

    @property
    def server(self) -> dict[str, float]:
        """Resources of all replicas."""
        return {name: self.replicas * amount for name, amount in self.replica.items()}

    @property
    def total(self) -> dict[str, float]:
        """Resources of the trial."""
        return {name: self.learner.get(name, 0) + self.server[name] for name in self.server}

    def __str__(self) -> str:
        parts = [
            f"{amount:g} {name} (learner {self.learner.get(name, 0):g}, "
            f"policy server {self.server[name]:g})"
            for name, amount in self.total.items()
            if amount
        ]
        return " and ".join(parts)


def trial_demand(configs: Iterable[RunConfig]) -> Demand:
    """Return the largest demand of these runs for each resource."""
    configs = list(configs)
    if any(config.cluster.num_learners for config in configs):
        raise ConfigError(
            "cluster.num_learners: the trials of a sweep learn in their own process: leave it at 0"
        )
    main, replica = zip(*map(resources, configs), strict=True)
    asked = [replica_demand(config) for config in configs]
    return Demand(
        learner={"CPU": float(LEARNER_CPUS), "GPU": max(process.gpus for process in main)},
        replica={
            name: max(amounts.get(name, 0.0) for amounts in asked)
            for name in dict.fromkeys(name for amounts in asked for name in amounts)
        },
        replicas=max(process.count for process in replica),
    )


def replica_demand(config: RunConfig) -> dict[str, float]:
    """Return the resources of one policy server replica."""
    server = config.policy_server
    return {"CPU": server.replica_cpus, "GPU": server.replica_gpus} | server.replica_resources


def concurrent_trials(demand: Demand, nodes: Sequence[Supply]) -> int:
    """Return how many trials run at a time; learner and replicas can be on different nodes."""
    free = [dict(node) for node in nodes]
    processes = [demand.learner, *[demand.replica] * demand.replicas]
    count = 0
    while all(place(process, free) for process in processes):
        count += 1
    return count


def check_demand(demand: Demand, nodes: Sequence[Supply]) -> None:
    """Raise ConfigError if a trial does not fit the cluster; Ray would wait forever."""
    if concurrent_trials(demand, nodes) == 0:
        raise ConfigError(
            f"a trial needs {demand} and the cluster has {supply(nodes, demand.total)}; "
            f"lower policy_server.* or cluster.* settings"
        )


def supply(nodes: Sequence[Supply], names: Iterable[str] = ("CPU", "GPU")) -> str:
    """Format the resources `names` of all nodes, as ``2 CPU, 2 CPU and 1 GPU``."""
    return ", ".join(
        " and ".join(f"{node.get(name, 0):g} {name}" for name in names if name in node)
        or "neither CPU nor GPU"
        for node in nodes
    )


def place(process: Supply, free: list[dict[str, float]]) -> bool:
    """Subtract the demand of a process from the first node that fits; return whether one does."""
    for node in free:
        if all(node.get(name, 0.0) + SLACK >= amount for name, amount in process.items()):
            for name, amount in process.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False
