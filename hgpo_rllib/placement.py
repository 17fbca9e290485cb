"""Ray resources of a run's processes.

Every process that uses a GPU is a Ray actor, a learner or a replica of the policy server, to which
Ray assigns GPUs. The main process uses none.
"""

from collections.abc import Mapping

from hgpo_rllib.settings.cluster import ClusterSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

Amounts = dict[str, float]
"""Amounts of resources, by Ray's resource names."""
# Fractions of a GPU that a colocated learner and its replica request. Two learners do not fit one
# GPU, so they start first, one on each. Ray then assigns a replica the GPU with the smallest rest.
LEARNER_SHARE, REPLICA_SHARE = 0.6, 0.4


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


def trial_bundles(cluster: ClusterSettings, server: PolicyServerSettings) -> list[Amounts]:
    """Return the bundles of a Tune trial: its main process, which has one CPU, and its learners.

    Replicas are outside of Tune's placement group, as Serve accepts none.
    """
    return [{"CPU": 1.0}, *cluster.num_learners * [learner_resources(cluster, server)]]


def describe(amounts: list[Amounts]) -> str:
    """Format the sum of amounts, as ``2 CPU and 1 GPU``."""
    parts = [f"{amount:g} {name}" for name, amount in add(*amounts).items()]
    return " and ".join(parts)


def add(*amounts: Mapping[str, float]) -> Amounts:
    """Return the sum of amounts."""
    names = dict.fromkeys(name for some in amounts for name in some)
    return {name: sum(some.get(name, 0.0) for some in amounts) for name in names}
