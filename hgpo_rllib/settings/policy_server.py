"""The section `policy_server` of a run file."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hgpo_rllib.section import Section

UpdateMode = Literal["wait", "abort", "keep"]
ENGINES = {"vllm": "hgpo_rllib.policy_server.vllm_settings"}
"""Modules of engines by name; see `hgpo_rllib.policy_server.engine.EngineModule`."""
WEIGHT_TRANSPORTS = {"object_store": "hgpo_rllib.policy_server.object_store"}
"""Modules of transports by name; see `hgpo_rllib.policy_server.engine.WeightTransport`."""


class PolicyServerSettings(Section):
    """The Ray Serve deployment around the inference engines."""

    engine: str = "vllm"
    """Inference engine of each replica, a name in `ENGINES` (docs/architecture.md)."""
    weight_transport: str = "object_store"
    """How new weights travel from the learner to replicas, a name in `WEIGHT_TRANSPORTS`."""
    num_replicas: int = Field(1, ge=1)
    """Replicas, with one engine each."""
    max_replicas: int | None = Field(None, ge=1)
    """Most engines that Ray Serve starts when many requests wait, and stops when few do; null:
    always `num_replicas`."""
    replica_cpus: float = Field(1, ge=0)
    """CPUs reserved for a replica."""
    replica_gpus: float = Field(0, ge=0)
    """GPUs reserved for a replica (0: its engine runs on the CPU)."""
    replica_resources: dict[str, Annotated[float, Field(gt=0)]] = Field({})
    """Custom resources of Ray reserved for a replica besides, such as `{rollout: 1}`: it runs on
    nodes that were started with them (docs/cluster.md)."""
    max_outage_s: float = Field(600, gt=0)
    """Seconds that a request waits, or is sent again, while replicas, engines or nodes are lost,
    before the run fails."""
    max_num_seqs: int = Field(128, ge=1)
    """Requests an engine decodes together."""
    memory_utilization: float = Field(0.6, gt=0, le=1)
    """Share of GPU memory that an engine may take."""
    cpu_kv_cache_gib: int = Field(1, ge=1)
    """KV cache of a CPU engine, GiB."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs that share one engine's model; `replica_gpus` has to be as many."""
    enable_prefix_caching: bool = True
    """Keep what an engine has computed of prompts for the next that begin alike."""
    update_mode: UpdateMode = "wait"
    """What happens to responses under way when newer weights are asked for: they end first
    (`wait`), are resampled under the new weights (`abort`), or go on under them (`keep`: responses
    may mix versions, and say which drew what)."""
    enforce_eager: bool = True
    """Skip compilation and CUDA graphs: faster start, slower decoding."""
    max_logp_gap: float | None = Field(None, gt=0)
    """Fail when the served policy's log-probabilities of the probe differ by more from the
    learner's after an update (float32: 1e-4); null: only report the gap."""

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
            raise ValueError("custom resources only; replica_cpus and replica_gpus have the others")
        return resources

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.num_replicas:
            raise ValueError("max_replicas is below num_replicas")
        if self.tensor_parallel_size > 1 and self.tensor_parallel_size != self.replica_gpus:
            raise ValueError("tensor_parallel_size needs as many replica_gpus")
        return self
