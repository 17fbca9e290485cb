"""What a run asks of Ray, and how much memory its processes take: from the settings alone.

Pure functions over a model's shape. They count what is certain (weights, optimiser, reference, KV
cache) and the two largest parts of a backward pass. Left out: what torch, vLLM, Ray and CUDA take
for themselves (one to three GiB a process), the games, and fragmentation.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from hgpo_rllib.config import ConfigError, RunConfig

BYTES = {"float32": 4, "bfloat16": 2}
LEARNER_BYTES = 4  # the learner computes in float32
PUBLISHED_VERSIONS = 2  # in the object store: the one that is being written, and the one before
LOGIT_COPIES = 3  # their log-probabilities, probabilities, and a product of the two
ENTROPY_COPIES = 2  # more in the backward pass, where the entropy has a gradient
POCKET_HEAD_SIZE = 32

MAIN = "main process with learner"
ROLLOUTS = "main process"
LEARNER = "learner"
REPLICA = "policy server replica"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder of the Llama family: RMS norms, gated MLP, grouped key-value heads.

    Attributes:
        qkv_bias: the projections to queries, keys and values have biases (Qwen2).
        tied: the output head is the embedding.
    """

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    qkv_bias: bool
    tied: bool

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key_value(self) -> int:
        """Width of all key heads together; as wide are the values."""
        return self.kv_heads * self.head_size

    @property
    def trunk_parameters(self) -> int:
        """Number of parameters without an output head of its own: ``parameters`` where tied."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """Number of parameters.

        ``V h (1, or 2 where the head is not tied) + h`` for embedding, head and the last norm, and
        a layer ``2 q h + 2 kv h`` (attention), ``q + 2 kv`` (its biases, if any), ``3 h m`` (MLP)
        and ``2 h`` (norms), with V the vocabulary, h the hidden and m the intermediate size, q and
        kv the widths of queries and of keys.
        """
        h, q, kv = self.hidden, self.query, self.key_value
        biases = (q + 2 * kv) * self.qkv_bias
        layer = 2 * q * h + 2 * kv * h + biases + 3 * h * self.intermediate + 2 * h
        return self.vocabulary * h * (1 if self.tied else 2) + h + self.layers * layer

    def kv_cache_bytes(self, tokens: int, dtype: str) -> int:
        """KV cache of so many tokens: ``2 · layers · kv`` values a token."""
        return tokens * 2 * self.layers * self.key_value * BYTES[dtype]

    def activation_bytes(self, tokens: int, checkpointing: bool = False) -> int:
        """What a forward pass over so many tokens keeps for the backward pass, float32.

        A layer keeps, for each token: ``3 h`` for each of its two norms (input, normalised, scaled:
        the input of the next projections), ``2 q + 2 kv`` for attention (queries, keys, values,
        result: no matrix of scores) and ``4 m`` for the MLP (gate, its activation, up, product).
        With gradient checkpointing it keeps ``h``, and the rest of one layer at a time.
        """
        per_layer = 6 * self.hidden + 2 * self.query + 2 * self.key_value + 4 * self.intermediate
        kept = self.layers * self.hidden + per_layer if checkpointing else self.layers * per_layer
        return tokens * kept * LEARNER_BYTES

    def adapter_parameters(self, rank: int) -> int:
        """Of LoRA: ``rank`` rows and columns for every linear layer but the head."""
        h, q, kv, m = self.hidden, self.query, self.key_value, self.intermediate
        return self.layers * rank * (2 * (h + q) + 2 * (h + kv) + 3 * (h + m))

    def logit_bytes(self, tokens: int, entropy_bonus: bool = False) -> int:
        """Largest moment of the head over so many response tokens, in copies of V values each."""
        copies = LOGIT_COPIES + ENTROPY_COPIES * entropy_bonus
        return copies * tokens * self.vocabulary * LEARNER_BYTES


# From the config.json of the models on the HuggingFace hub, without or with "-Instruct".
KNOWN_SHAPES: dict[str, ModelShape] = {
    "Qwen/Qwen2.5-0.5B": ModelShape(151936, 896, 4864, 24, 14, 2, 64, True, True),
    "Qwen/Qwen2.5-1.5B": ModelShape(151936, 1536, 8960, 28, 12, 2, 128, True, True),
    "Qwen/Qwen2.5-3B": ModelShape(151936, 2048, 11008, 36, 16, 2, 128, True, True),
    "Qwen/Qwen2.5-7B": ModelShape(152064, 3584, 18944, 28, 28, 4, 128, True, False),
    "HuggingFaceTB/SmolLM2-135M": ModelShape(49152, 576, 1536, 30, 9, 3, 64, False, True),
    "HuggingFaceTB/SmolLM2-360M": ModelShape(49152, 960, 2560, 32, 15, 5, 64, False, True),
    "HuggingFaceTB/SmolLM2-1.7B": ModelShape(49152, 2048, 8192, 24, 32, 32, 64, False, True),
}


@dataclass(frozen=True)
class Resources:
    """What one kind of process asks of Ray, `count` times."""

    process: str
    count: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class MemoryItem:
    """A part of a process's memory; `size` in bytes, `where` it lies."""

    process: str
    where: str
    what: str
    size: int


def resources(config: RunConfig) -> list[Resources]:
    """What `hgpo train` asks of Ray, by process.

    Environments and rollouts, and the learner unless there are several, share the main process,
    which reserves no CPU (under Tune it is an actor, with one CPU). Serve's controller and Ray's
    own processes reserve nothing.
    """
    server, cluster = config.policy_server, config.cluster
    replicas = Resources(REPLICA, server.num_replicas, server.replica_cpus, server.replica_gpus)
    if cluster.num_learners == 0:
        return [Resources(MAIN, 1, 0, cluster.learner_gpus), replicas]
    cpus = 0 if cluster.learner_gpus else 1  # RLlib's rule
    learners = Resources(LEARNER, cluster.num_learners, cpus, cluster.learner_gpus)
    return [Resources(ROLLOUTS, 1, 0, 0), learners, replicas]


def memory(config: RunConfig, shape: ModelShape) -> list[MemoryItem]:
    """The parts of one process of each kind, the longest prompts and responses assumed."""
    return [*_learner(config, shape), *_published(config, shape), *_replica(config, shape)]


def smallest_gpu(config: RunConfig, shape: ModelShape) -> int:
    """Bytes of a GPU that lets a replica decode `max_num_seqs` longest sequences at a time.

    ``(weights + KV cache) / memory_utilization``; on a smaller one requests wait for each other.
    """
    items = _replica(config, shape)
    return math.ceil(sum(item.size for item in items) / config.policy_server.memory_utilization)


def _learner(config: RunConfig, shape: ModelShape) -> list[MemoryItem]:
    """Weights, gradients and reference take 4 bytes a parameter, AdamW's two moments 8.

    With LoRA gradients and moments are those of the adapters, and the weights are the reference.
    Activations are counted in float32, whatever `learner.compute_dtype` is. Several learners have
    as much each, or a part where parameters are sharded.
    """
    where = "GPU" if config.cluster.learner_gpus else "host"
    shards = config.cluster.num_learners if config.learner.shard_parameters else 1
    rank, checkpointing = config.model.lora_rank, config.learner.gradient_checkpointing
    weights = -(-shape.parameters * LEARNER_BYTES // shards)
    trained = shape.adapter_parameters(rank) * LEARNER_BYTES if rank else weights
    turn = config.agent.max_prompt_tokens + config.agent.max_response_tokens
    tokens = max(turn, config.learner.micro_batch_tokens)  # a longer turn has a part of its own
    responses = tokens * config.agent.max_response_tokens // turn
    parts = [
        ("weights, float32", weights),
        ("gradients, float32", trained),
        ("AdamW's two moments, float32", 2 * trained),
        (f"activations of {tokens:,} tokens", shape.activation_bytes(tokens, checkpointing)),
        (
            f"logits of {responses:,} response tokens",
            shape.logit_bytes(responses, config.learner.entropy_coeff > 0),
        ),
    ]
    if config.learner.kl_coeff > 0 and not rank:
        parts.insert(3, ("reference model, float32", weights))
    if config.learner.critic == "separate":  # a critic on the policy's trunk is one row of weights
        critic = -(-shape.trunk_parameters * LEARNER_BYTES // shards)
        prompts = tokens - responses
        parts += [
            ("critic: weights, gradients, AdamW's moments, float32", 4 * critic),
            (
                f"critic: activations of {prompts:,} prompt tokens",
                shape.activation_bytes(prompts, checkpointing),
            ),
        ]
    process = LEARNER if config.cluster.num_learners else MAIN
    items = [MemoryItem(process, where, what, size) for what, size in parts]
    if config.learner.shard_parameters:
        whole = shape.parameters * LEARNER_BYTES
        items.append(MemoryItem(f"first {LEARNER}", "host", "whole weights, float32", whole))
    return items


def _published(config: RunConfig, shape: ModelShape) -> list[MemoryItem]:
    """Versions in Ray's object store, and a copy for each replica for as long as it loads one."""
    dtype, replicas = config.model.dtype, config.policy_server.num_replicas
    rank = config.model.lora_rank
    size = (shape.adapter_parameters(rank) if rank else shape.parameters) * BYTES[dtype]
    store = f"{PUBLISHED_VERSIONS} versions of the weights in Ray's object store, {dtype}"
    copies = f"replicas: {replicas}, one copy each, {dtype}"
    return [
        MemoryItem("published weights", "/dev/shm", store, PUBLISHED_VERSIONS * size),
        MemoryItem("weights that are being loaded", "host", copies, replicas * size),
    ]


def _replica(config: RunConfig, shape: ModelShape) -> list[MemoryItem]:
    """On a CPU the KV cache has the size that is set, on a GPU what vLLM is left."""
    server, agent, dtype = config.policy_server, config.agent, config.model.dtype
    where = "GPU" if server.replica_gpus else "host"
    if server.replica_gpus:
        turn = agent.max_prompt_tokens + agent.max_response_tokens
        what = f"KV cache of {server.max_num_seqs} sequences of {turn:,} tokens"
        cache = shape.kv_cache_bytes(server.max_num_seqs * turn, dtype)
    else:
        what, cache = "KV cache (cpu_kv_cache_gib)", server.cpu_kv_cache_gib * 2**30
    weights = shape.parameters * BYTES[dtype]
    return [
        MemoryItem(REPLICA, where, f"weights, {dtype}", weights),
        MemoryItem(REPLICA, where, what, cache),
    ]


def find_shape(config: RunConfig) -> ModelShape | None:
    """The shape of the run's model: of a local config.json, of the table, or of the pocket model.

    Nothing is downloaded. None for a name that the table lacks, or another architecture.

    Raises:
        ConfigError: the model's config.json cannot be used.
    """
    name = config.model.model_path
    if name is None:
        return pocket_shape(config)
    path = Path(name) / "config.json"
    if path.is_file():
        return _read_shape(path)
    return KNOWN_SHAPES.get(name.removesuffix("-Instruct"))


def pocket_shape(config: RunConfig) -> ModelShape:
    """The shape of the model that the section `warm_start` describes."""
    warm = config.warm_start
    return ModelShape(
        vocabulary=-(-warm.vocabulary // 64) * 64,
        hidden=warm.hidden_size,
        intermediate=3 * warm.hidden_size,
        layers=warm.layers,
        heads=warm.hidden_size // POCKET_HEAD_SIZE,
        kv_heads=1,
        head_size=POCKET_HEAD_SIZE,
        qkv_bias=True,
        tied=True,
    )


def _read_shape(path: Path) -> ModelShape | None:
    """The shape in a HuggingFace config.json; None for an architecture that is not counted."""
    try:
        values = json.loads(path.read_text())
        if values.get("model_type") not in ("qwen2", "llama") or values.get("attention_bias"):
            return None
        heads = values["num_attention_heads"]
        return ModelShape(
            vocabulary=values["vocab_size"],
            hidden=values["hidden_size"],
            intermediate=values["intermediate_size"],
            layers=values["num_hidden_layers"],
            heads=heads,
            kv_heads=values.get("num_key_value_heads") or heads,
            head_size=values.get("head_dim") or values["hidden_size"] // heads,
            qkv_bias=values["model_type"] == "qwen2",
            tied=values.get("tie_word_embeddings", False),
        )
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"model.model_path: {path} is no model config ({error!r})") from error
