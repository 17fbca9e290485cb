"""Placement of a run's processes: the Ray resources of each, reserved in one placement group.

Learners and policy server replicas are Ray actors with resources of the run's placement group. They
start together or not at all, and two of them share a GPU only where the settings say so. The main
process uses no GPU.
"""

import logging
from collections.abc import Mapping

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hgpo_rllib.settings.cluster import ClusterSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

logger = logging.getLogger(__name__)
Amounts = dict[str, float]
"""Amounts of resources, by Ray's resource names."""
LEARNER_SHARE = 0.6
"""GPUs that a colocated learner requests: more than half, so that two learners never share one."""
REPLICA_SHARE = 0.4
WARN_S = 30.0


def learner_gpus(cluster: ClusterSettings, server: PolicyServerSettings) -> float:
    """Return the GPUs that one learner process requests."""
    return LEARNER_SHARE if server.colocate else cluster.learner_gpus


def learner_resources(cluster: ClusterSettings, server: PolicyServerSettings) -> Amounts:
    """Return the resources of one learner process; RLlib gives those without a GPU one CPU."""
    gpus = learner_gpus(cluster, server)
    return {"GPU": gpus} if gpus else {"CPU": 1.0}


def replica_resources(server: PolicyServerSettings) -> Amounts:
    """Return the resources of one policy server replica."""
    gpus = REPLICA_SHARE if server.colocate else server.replica_gpus
    amounts = {"CPU": server.replica_cpus, "GPU": gpus} | server.replica_resources
    return {name: amount for name, amount in amounts.items() if amount}


def bundles(cluster: ClusterSettings, server: PolicyServerSettings) -> list[Amounts]:
    """Return the bundles of a run's placement group, without those that reserve nothing.

    There is one for each learner process and each replica, or, if they are colocated, for each
    learner with its replica.
    """
    learners = cluster.num_learners * [learner_resources(cluster, server)]
    replicas = (server.max_replicas or server.num_replicas) * [replica_resources(server)]
    if server.colocate:
        return [_sum(*pair) for pair in zip(learners, replicas, strict=True)]
    return [bundle for bundle in (*learners, *replicas) if bundle]


def trial_bundles(cluster: ClusterSettings, server: PolicyServerSettings) -> list[Amounts]:
    """Return the bundles of a Tune trial, whose main process is an actor with one CPU."""
    return [{"CPU": 1.0}, *bundles(cluster, server)]


def learners_first(cluster: ClusterSettings, server: PolicyServerSettings) -> bool:
    """Whether the learners have to start before the replicas.

    Ray assigns an actor to any bundles of the group that have room, so actors that need more of a
    GPU start first. Colocated replicas then get the rest of each learner's GPU.
    """
    return learner_gpus(cluster, server) > replica_resources(server).get("GPU", 0)


def reserve(amounts: list[Amounts]) -> PlacementGroup | None:
    """Create a placement group and wait until its resources are free; None without bundles."""
    if not amounts:
        return None
    group = placement_group(amounts, strategy="PACK")
    try:
        while not group.wait(WARN_S):
            logger.warning("waiting for resources that others use: %s", describe(amounts))
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def in_group(group: PlacementGroup | None, amounts: Amounts) -> Amounts:
    """Return the amounts as resources of the group.

    Serve creates the actors of replicas and accepts no placement group for them, only resources.
    Ray represents the resources of a group by custom resources with these names, and sets
    `CUDA_VISIBLE_DEVICES` accordingly.
    """
    if group is None:
        return amounts
    return {f"{name}_group_{group.id.hex()}": amount for name, amount in amounts.items()}


def describe(amounts: list[Amounts]) -> str:
    """Format the sum of amounts, as ``2 CPU and 1 GPU``."""
    parts = [f"{amount:g} {name}" for name, amount in _sum(*amounts).items()]
    return " and ".join(parts)


def _sum(*amounts: Mapping[str, float]) -> Amounts:
    names = dict.fromkeys(name for some in amounts for name in some)
    return {name: sum(some.get(name, 0.0) for some in amounts) for name in names}
