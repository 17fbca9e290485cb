"""The section `cluster` of a run file."""

from pydantic import Field

from hgpo_rllib.section import Section
from hgpo_rllib.settings.policy_server import PolicyServerSettings


class ClusterSettings(Section):
    """Learner processes and Ray's dashboard."""

    num_learners: int = Field(0, ge=0)
    """Number of learner processes, which split every mini-batch. 0: learn in the main process, on
    the CPU."""
    learner_gpus: float = Field(0, ge=0, le=1)
    """Number of GPUs per learner process. A fraction shares a GPU with other processes."""
    dashboard_port: int | None = Field(None, ge=1, le=65535)
    """Port of the Ray dashboard on the loopback address. null: no dashboard."""


def check_gpus(cluster: ClusterSettings, server: PolicyServerSettings, schedule: str) -> None:
    """Raise a ValueError for a GPU without a learner process, or if colocation is impossible.

    Args:
        cluster: the learner processes.
        server: the replicas.
        schedule: `rollout.schedule`.
    """
    if cluster.learner_gpus and not cluster.num_learners:
        raise ValueError(
            f"cluster.learner_gpus={cluster.learner_gpus:g} needs learner processes, as the main "
            "process uses no GPU: set cluster.num_learners=1 or more"
        )
    if not server.colocate:
        return
    if cluster.learner_gpus != 1 or server.replica_gpus != 1:
        raise ValueError(
            "policy_server.colocate=true lets learners and replicas take turns on whole GPUs: set "
            "cluster.learner_gpus=1 and policy_server.replica_gpus=1"
        )
    if server.num_replicas != cluster.num_learners or server.max_replicas is not None:
        raise ValueError(
            "policy_server.colocate=true needs one replica for each learner: set "
            f"policy_server.num_replicas={cluster.num_learners}, as cluster.num_learners, and "
            "policy_server.max_replicas=null"
        )
    if schedule != "synchronous":
        raise ValueError(
            "policy_server.colocate=true stops the engines during an update: set "
            "rollout.schedule=synchronous"
        )
