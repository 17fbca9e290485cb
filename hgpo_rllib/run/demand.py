"""Compare the resources of runs and trials with those of the cluster's nodes."""

from collections.abc import Iterable, Mapping, Sequence

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.placement import (
    Amounts,
    add,
    describe,
    learner_resources,
    replica_resources,
    trial_bundles,
)

Supply = Mapping[str, float]
"""Amounts of a node's resources, by Ray's resource names."""
SLACK = 1e-9  # tolerance for sums of fractional GPUs


def check_run(config: RunConfig, nodes: Sequence[Supply]) -> None:
    """Raise ConfigError unless the learners and all replicas fit the nodes.

    Args:
        config: the settings.
        nodes: resources of each node.
    """
    cluster, server = config.cluster, config.policy_server
    free = [dict(node) for node in nodes]
    learner, replica = learner_resources(cluster, server), replica_resources(server)
    if server.colocate:
        pairs = cluster.num_learners * [add(learner, replica)]
        _place_all("cluster.num_learners=policy_server.num_replicas", pairs, free)
        return
    _place_all("cluster.num_learners", cluster.num_learners * [learner], free)
    _place_all("policy_server.num_replicas", server.num_replicas * [replica], free)


def _place_all(setting: str, processes: list[Amounts], free: list[Amounts]) -> None:
    held = sum(place(process, free) for process in processes)
    if held < len(processes):
        raise ConfigError(
            f"{setting}={len(processes)}, of {describe(processes[:1])} each, and the cluster holds "
            f"{held}; lower it or the resources of each, or start more nodes (docs/cluster.md)"
        )


def trial_processes(config: RunConfig) -> list[Amounts]:
    """Return the resources of all processes of a Tune trial with these settings.

    Raises:
        ConfigError: learners and replicas are colocated. Ray could assign the replica of one trial
            the GPU of another trial's learner.
    """
    cluster, server = config.cluster, config.policy_server
    if server.colocate:
        raise ConfigError("policy_server.colocate=true is for single runs: leave it out in sweeps")
    return [*trial_bundles(cluster, server), *server.num_replicas * [replica_resources(server)]]


def concurrent_trials(trial: list[Amounts], nodes: Sequence[Supply]) -> int:
    """Return how many trials of these processes run at a time."""
    free = [dict(node) for node in nodes]
    count = 0
    while all(place(bundle, free) for bundle in trial):
        count += 1
    return count


def check_trial(trial: list[Amounts], nodes: Sequence[Supply]) -> None:
    """Raise ConfigError if a trial does not fit the cluster; Tune would wait forever."""
    if concurrent_trials(trial, nodes) == 0:
        raise ConfigError(
            f"a trial needs {describe(trial)} and the cluster has {supply(nodes, trial)}; "
            f"lower policy_server.* or cluster.* settings"
        )


def supply(nodes: Sequence[Supply], trial: Iterable[Amounts] = ({"CPU": 1, "GPU": 1},)) -> str:
    """Format the resources of all nodes that a trial uses, as ``2 CPU, 2 CPU and 1 GPU``."""
    names = list(dict.fromkeys(name for bundle in trial for name in bundle))
    return ", ".join(
        " and ".join(f"{node.get(name, 0):g} {name}" for name in names if name in node)
        or "neither CPU nor GPU"
        for node in nodes
    )


def place(process: Supply, free: list[Amounts]) -> bool:
    """Subtract the demand of a process from the first node that fits; return whether one does."""
    for node in free:
        if all(node.get(name, 0.0) + SLACK >= amount for name, amount in process.items()):
            for name, amount in process.items():
                node[name] = node.get(name, 0.0) - amount
            return True
    return False
