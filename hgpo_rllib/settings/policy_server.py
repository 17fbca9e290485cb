"""The section `policy_server` of a run file."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hgpo_rllib.section import Section

UpdateMode = Literal["wait", "abort", "keep"]
ENGINES = {"vllm": "hgpo_rllib.policy_server.vllm_settings"}
"""Modules of engines by name; see `hgpo_rllib.policy_server.engine.EngineModule`."""
GPU_TRANSPORTS = ("nccl", "ipc")
"""Names of the transports between GPUs, which are those of vLLM's weight-transfer engines."""
WEIGHT_TRANSPORTS = {"object_store": "hgpo_rllib.policy_server.object_store"}
WEIGHT_TRANSPORTS |= {
    name: f"hgpo_rllib.policy_server.gpu_transports:{name}" for name in GPU_TRANSPORTS
}
"""Modules or their attributes by name; see `hgpo_rllib.policy_server.engine.WeightTransport`."""


class PolicyServerSettings(Section):
    """The Ray Serve deployment of the inference engines."""

    engine: str = "vllm"
    """Name of the inference engine of each replica, a key of `ENGINES` (docs/architecture.md)."""
    weight_transport: str = "object_store"
    """Name of the transport of new weights from the learner to the replicas, a key of
    `WEIGHT_TRANSPORTS`. `object_store`: through host memory. `nccl`: between GPUs, if learners and
    replicas have GPUs of their own. `ipc`: if one learner and one replica share a GPU. The last two
    are vLLM's, need `rollout.schedule=synchronous`, and have not been tested on GPUs."""
    num_replicas: int = Field(1, ge=1)
    """Number of replicas. Each runs one engine. A group is played on one replica, so more replicas
    than groups in progress (`rollout.groups_per_iteration`) are idle in rollouts."""
    max_replicas: int | None = Field(None, ge=1)
    """Maximum number of replicas with autoscaling: Ray Serve adds replicas when many requests
    wait and removes them when few do. null: no autoscaling, always `num_replicas`."""
    replica_cpus: float = Field(1, ge=0)
    """Number of CPUs reserved per replica, and of threads of an engine on a CPU."""
    replica_gpus: float = Field(0, ge=0)
    """Number of GPUs reserved per replica. 0: the engine runs on the CPU."""
    colocate: bool = False
    """Let each replica share the GPU of a learner. Engines free their GPU memory during an update
    (vLLM's sleep mode) and load the new weights afterwards. Requires as many replicas as learners,
    each with `replica_gpus=1` and `cluster.learner_gpus=1`."""
    replica_resources: dict[str, Annotated[float, Field(gt=0)]] = Field({})
    """Custom Ray resources reserved per replica, such as `{rollout: 1}`. Replicas run only on
    nodes that were started with these resources (docs/cluster.md)."""
    max_outage_s: float = Field(600, gt=0)
    """Seconds that a request waits and is retried after replicas, engines or nodes were lost.
    Then the run fails."""
    max_num_seqs: int = Field(128, ge=1)
    """Maximum number of requests that an engine decodes in one batch."""
    memory_utilization: float = Field(0.6, gt=0, le=1)
    """Fraction of the GPU memory that an engine may use."""
    cpu_kv_cache_gib: int = Field(1, ge=1)
    """Size of the KV cache of an engine on the CPU, in GiB."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Number of GPUs per engine. Must equal `replica_gpus` if larger than 1."""
    enable_prefix_caching: bool = True
    """Reuse the KV cache of prompts that begin with the same tokens."""
    update_mode: UpdateMode = "wait"
    """What happens to running requests when new weights are loaded: `wait` finishes them first,
    `abort` resamples them with the new weights, `keep` continues them with the new weights (a
    response can then mix versions, and records which version sampled which tokens)."""
    enforce_eager: bool = True
    """Disable compilation and CUDA graphs: faster start, slower decoding."""
    max_logp_gap: float | None = Field(None, gt=0)
    """Fail if the log-probabilities of the served policy and the learner on the probe differ by
    more than this after an update (float32: 1e-4). null: only report the difference."""

    @field_validator("engine", "weight_transport")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        known = ENGINES if info.field_name == "engine" else WEIGHT_TRANSPORTS
        if name not in known:
            raise ValueError(f"no such {info.field_name}: give one of {', '.join(known)}")
        return name

    @field_validator("replica_resources")
    @classmethod
    def _custom(cls, resources: dict[str, float]) -> dict[str, float]:
        if resources.keys() & {"CPU", "GPU", "memory"}:
            raise ValueError(
                "custom resources only: set CPUs and GPUs with replica_cpus and replica_gpus"
            )
        return resources

    @property
    def most_replicas(self) -> int:
        """Number of replicas that there can be at a time."""
        return self.max_replicas or self.num_replicas

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError(
                f"max_replicas={self.max_replicas} is below num_replicas={self.num_replicas}"
            )
        size, gpus = self.tensor_parallel_size, self.replica_gpus
        if max(size, gpus) > 1 and size != gpus:
            raise ValueError(
                f"tensor_parallel_size={size} and replica_gpus={gpus:g}: with several GPUs per "
                "replica, set both to their number"
            )
        return self
