"""The section `cluster` of a run file."""

from pydantic import Field

from hgpo_rllib.section import Section
from hgpo_rllib.settings.policy_server import GPU_TRANSPORTS, PolicyServerSettings


class ClusterSettings(Section):
    """Env runner and learner processes, and Ray's dashboard."""

    num_env_runners: int = Field(0, ge=0)
    """Number of env runner processes, among which the groups are distributed. 0: roll out in the
    main process."""
    env_runner_cpus: float = Field(1, gt=0)
    """CPUs that Ray reserves for each env runner process."""

    num_learners: int = Field(0, ge=0)
    """Number of learner processes, which split every mini-batch. 0: learn in the main process, on
    the CPU."""
    learner_gpus: float = Field(0, ge=0, le=1)
    """Number of GPUs per learner process. A fraction shares a GPU with other processes."""
    dashboard_port: int | None = Field(None, ge=1, le=65535)
    """Port of the Ray dashboard on the loopback address. null: no dashboard."""


def check_gpus(cluster: ClusterSettings, server: PolicyServerSettings, schedule: str) -> None:
    """Raise a ValueError for a GPU without a learner process, or if colocation is impossible.

    `schedule` is `rollout.schedule`.
    """
    if cluster.learner_gpus and not cluster.num_learners:
        raise ValueError(
            f"cluster.learner_gpus={cluster.learner_gpus:g} needs learner processes, as the main "
            "process uses no GPU: set cluster.num_learners=1 or more"
        )
    if cluster.num_learners > 1 and 0 < cluster.learner_gpus <= 0.5:
        raise ValueError(
            f"cluster.learner_gpus={cluster.learner_gpus:g} can put two learners on one GPU, which "
            "NCCL does not support: set it above 0.5, or cluster.num_learners=1"
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


def check_transport(
    cluster: ClusterSettings, server: PolicyServerSettings, schedule: str, lora_rank: int
) -> None:
    """Raise a ValueError if `policy_server.weight_transport` cannot work with the other settings.

    `schedule` is `rollout.schedule`, `lora_rank` is `model.lora_rank`.
    """
    name = server.weight_transport
    if name not in GPU_TRANSPORTS:
        return
    on_gpus = cluster.learner_gpus > 0 and server.replica_gpus > 0
    shared = server.colocate or cluster.learner_gpus + server.replica_gpus <= 1
    pairs = max(cluster.num_learners, server.most_replicas)
    placed = {
        "ipc": (
            on_gpus and shared and pairs == 1,
            "one learner and one replica that share a GPU: set cluster.num_learners=1, "
            "cluster.learner_gpus=1, policy_server.num_replicas=1, policy_server.replica_gpus=1 "
            "and policy_server.colocate=true",
        ),
        "nccl": (
            cluster.learner_gpus == 1 <= server.replica_gpus and not shared,
            "a GPU for each process: set cluster.learner_gpus=1, policy_server.replica_gpus to 1 "
            "or more, and policy_server.colocate=false",
        ),
    }
    for possible, needed in (
        placed[name],
        (server.engine == "vllm", "vLLM: set policy_server.engine=vllm"),
        (not lora_rank, "a model without adapters: set model.lora_rank=0"),
        (schedule == "synchronous", "one version at a time: set rollout.schedule=synchronous"),
    ):
        if not possible:
            raise ValueError(
                f"policy_server.weight_transport={name} needs {needed}, or "
                "policy_server.weight_transport=object_store"
            )
