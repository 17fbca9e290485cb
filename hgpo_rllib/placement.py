"""Ray resources of a run's processes, and whether they fit the nodes of a cluster.

Every process that uses a GPU is a Ray actor, a learner or a replica of the policy server, to which
Ray assigns GPUs. The main process uses none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.cluster import ClusterSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

Amounts = dict[str, float]
"""Amounts of resources, by Ray's resource names."""
Nodes = Sequence[Mapping[str, float]]
"""Total or free resources of each node."""
# Fractions of a GPU that a colocated learner and its replica request. Two learners do not fit one
# GPU, so they start first, one on each. Ray then assigns a replica the GPU with the least
# free share that is enough.
LEARNER_SHARE, REPLICA_SHARE = 0.6, 0.4
SLACK = 1e-9  # tolerance for sums of fractional GPUs


def env_runner_resources(cluster: ClusterSettings) -> Amounts:
    """Return the resources of one env runner process."""
    return {"CPU": cluster.env_runner_cpus}


def learner_resources(cluster: ClusterSettings, server: PolicyServerSettings) -> Amounts:
    """Return the resources of one learner process; RLlib gives those without a GPU one CPU."""
    gpus = LEARNER_SHARE if server.colocate else cluster.learner_gpus
    return {"GPU": gpus} if gpus else {"CPU": 1.0}


def replica_resources(server: PolicyServerSettings) -> Amounts:
    """Return the resources of one policy server replica."""
    gpus = REPLICA_SHARE if server.colocate else server.replica_gpus
    amounts = {"CPU": server.replica_cpus, "GPU": gpus} | server.replica_resources
    return {name: amount for name, amount in amounts.items() if amount}


def actor_options(amounts: Amounts) -> dict[str, Any]:
    """Return the options of a Ray actor with these resources."""
    custom = dict(amounts)
    cpus, gpus = custom.pop("CPU", 0), custom.pop("GPU", 0)
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": custom}


@dataclass(frozen=True)
class Demand:
    """Resources of the processes of a Tune trial."""

    learner: list[Amounts]
    """The main process, which has one CPU, and the learners."""
    env_runners: list[Amounts]
    policy_server: list[Amounts]
    """The replicas."""

    @property
    def bundles(self) -> list[Amounts]:
        """Tune's placement group, in RLlib's order. Serve accepts none for replicas."""
        main, *learners = self.learner
        return [main, *self.env_runners, *learners]

    @property
    def total(self) -> Amounts:
        """Sum over all processes."""
        return _sum(*self.bundles, *self.policy_server)

    def __str__(self) -> str:
        """Format as ``2 CPU (learner 1, policy server 1)``."""
        parts = {"learner": self.learner, "env runners": self.env_runners}
        parts["policy server"] = self.policy_server
        sums = {part: _sum(*amounts) for part, amounts in parts.items() if amounts}
        return " and ".join(
            f"{amount:g} {name} ("
            + ", ".join(f"{part} {amounts.get(name, 0):g}" for part, amounts in sums.items())
            + ")"
            for name, amount in self.total.items()
        )

    def fitting(self, nodes: Nodes) -> int:
        """Return how many such trials run on the nodes at a time."""
        free = [_Free(node) for node in nodes]
        count = 0
        while all(_place(process, free) for process in (*self.bundles, *self.policy_server)):
            count += 1
        return count

    def check(self, nodes: Nodes) -> None:
        """Raise ConfigError if a trial does not fit the nodes; Tune would wait forever."""
        if not self.fitting(nodes):
            raise ConfigError(
                f"a trial needs {self} and the cluster has {describe(nodes, self.total)}; "
                "lower policy_server.* or cluster.* settings"
            )


def trial_demand(cluster: ClusterSettings, server: PolicyServerSettings) -> Demand:
    """Return the resources of a Tune trial with these settings.

    Raises:
        ConfigError: learners and replicas are colocated. Ray could assign the replica of one trial
            the GPU of another trial's learner.
    """
    if server.colocate:
        raise ConfigError("policy_server.colocate=true is for single runs: leave it out in sweeps")
    runners = cluster.num_env_runners * [env_runner_resources(cluster)]
    learners = cluster.num_learners * [learner_resources(cluster, server)]
    replicas = server.num_replicas * [replica_resources(server)]
    return Demand([{"CPU": 1.0}, *learners], runners, replicas)


def check_run(cluster: ClusterSettings, server: PolicyServerSettings, nodes: Nodes) -> None:
    """Raise ConfigError unless all processes fit the nodes; Ray would wait forever."""
    if server.weight_transport == "ipc" and sum(bool(node.get("GPU")) for node in nodes) > 1:
        raise ConfigError(
            "policy_server.weight_transport=ipc: Ray could start learner and replica on different "
            "nodes: use one node with GPUs, or policy_server.weight_transport=object_store"
        )
    learner, replica = learner_resources(cluster, server), replica_resources(server)
    if server.colocate:
        _check_colocation(cluster, nodes)
        pair = _sum(learner, replica)
        counts = {"cluster.num_learners=policy_server.num_replicas": (cluster.num_learners, pair)}
    else:  # in the order in which a run starts them
        counts = {"policy_server.num_replicas": (server.num_replicas, replica)}
        counts["cluster.num_learners"] = (cluster.num_learners, learner)
    counts["cluster.num_env_runners"] = (cluster.num_env_runners, env_runner_resources(cluster))
    free = [_Free(node) for node in nodes]
    for setting, (count, process) in counts.items():
        placed = sum(_place(process, free) for _ in range(count))
        if placed < count:
            amounts = " and ".join(f"{amount:g} {name}" for name, amount in process.items())
            raise ConfigError(
                f"{setting}={count}, of {amounts} each, and the cluster holds {placed}; lower it "
                "or the resources of each, or start more nodes (docs/cluster.md)"
            )


def _check_colocation(cluster: ClusterSettings, nodes: Nodes) -> None:
    """Raise ConfigError if Ray could assign two colocated replicas a GPU without a learner.

    On a node with a learner, the GPUs of learners are preferred (`_take_gpus`).
    """
    gpus = [node["GPU"] for node in nodes if node.get("GPU")]
    if len(gpus) > 1 and 1 < cluster.num_learners < sum(gpus):
        raise ConfigError(
            f"policy_server.colocate=true with cluster.num_learners={cluster.num_learners} on "
            f"{len(gpus)} nodes: Ray could start two engines on one of their {sum(gpus):g} GPUs; "
            "set as many learners as GPUs, use one node, or set policy_server.colocate=false"
        )


def processes_by_gpu(
    cluster: ClusterSettings, server: PolicyServerSettings
) -> list[tuple[int, int]]:
    """Return how many learners and replicas of a run use each GPU, if all are on one node."""
    learner = learner_resources(cluster, server).get("GPU", 0.0)
    replica = replica_resources(server).get("GPU", 0.0)
    learners, replicas = cluster.num_learners * [(0, learner)], server.num_replicas * [(1, replica)]
    started = learners + replicas if server.colocate else replicas + learners  # as `HGPO.setup`
    demands = [(kind, amount) for kind, amount in started if amount]
    gpus = [1.0] * sum(math.ceil(amount) for _, amount in demands)
    users = [[0, 0] for _ in gpus]
    for kind, amount in demands:
        for gpu in _take_gpus(gpus, amount):
            users[gpu][kind] += 1
    return [(some, others) for some, others in users if some or others]


def describe(nodes: Nodes, names: Iterable[str] = ("CPU", "GPU")) -> str:
    """Format the resources `names` of all nodes, as ``2 CPU, 2 CPU and 1 GPU``."""
    return ", ".join(
        " and ".join(f"{node[name]:g} {name}" for name in names if name in node)
        or "neither CPU nor GPU"
        for node in nodes
    )


class _Free:
    """Free resources of a node; `gpus` has the free part of each GPU."""

    def __init__(self, node: Mapping[str, float]):
        self.amounts = dict(node)
        gpus = self.amounts.pop("GPU", 0.0)
        self.gpus = [min(1.0, gpus - number) for number in range(math.ceil(gpus))]

    def take(self, process: Amounts) -> bool:
        """Subtract the demand of a process; return whether it fits."""
        others = {name: amount for name, amount in process.items() if name != "GPU"}
        fits = all(self.amounts.get(name, 0) + SLACK >= amount for name, amount in others.items())
        gpus = process.get("GPU", 0.0)
        if not fits or (gpus and not _take_gpus(self.gpus, gpus)):
            return False
        for name, amount in others.items():
            self.amounts[name] -= amount
        return True


def _take_gpus(free: list[float], amount: float) -> list[int]:
    """Subtract the GPUs of a process and return their indices; none if they are not free.

    As in Ray, a fraction is of one GPU: of those with enough left, the one with the least.
    """
    count = max(1, round(amount))
    share = amount / count
    fitting = [gpu for gpu, left in enumerate(free) if left + SLACK >= share]
    if len(fitting) < count:
        return []
    chosen = sorted(fitting, key=free.__getitem__)[:count]
    for gpu in chosen:
        free[gpu] -= share
    return chosen


def _place(process: Amounts, nodes: list[_Free]) -> bool:
    """Subtract the demand of a process from the first node that fits; return whether one does."""
    return any(node.take(process) for node in nodes)


def _sum(*amounts: Amounts) -> Amounts:
    names = dict.fromkeys(name for some in amounts for name in some)
    return {name: sum(some.get(name, 0.0) for some in amounts) for name in names}
