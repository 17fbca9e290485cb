"""Estimate the Ray resources and the memory of a run from its settings.

The functions are pure and take a model's size. They count weights, optimiser, reference and KV
cache, and the two largest parts of a backward pass. They exclude the overhead of torch, vLLM, Ray
and CUDA (one to three GiB per process), the games, and fragmentation.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, LlamaConfig, PretrainedConfig, Qwen2Config

from hgpo_rllib.config import ConfigError, RunConfig

BYTES = {"float32": 4, "bfloat16": 2}
LEARNER_BYTES = 4  # the learner uses float32
PUBLISHED_VERSIONS = 2  # in the object store: the one being written, and the previous one
LOGIT_COPIES = 3  # log-probabilities, probabilities, and a product of the two
ENTROPY_COPIES = 2  # additional copies in the backward pass of the entropy bonus
POCKET_HEAD_SIZE = 32

MAIN = "main process with learner"
ROLLOUTS = "main process"
LEARNER = "learner"
REPLICA = "policy server replica"


class ModelSize:
    """Sizes of a decoder of the Llama family: RMS norms, gated MLP, grouped key-value heads.

    Attributes:
        parameters: number of parameters; a head tied to the embedding is counted once.
        trunk_parameters: number of parameters without the output head.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Count the parameters of transformers' model of `config`, on the meta device.

        Raises:
            AttributeError: the model is not such a decoder.
        """
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self.parameters = model.num_parameters()
        self.trunk_parameters = model.base_model.num_parameters()
        linear = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
        self._adapter_rows = sum(layer.in_features + layer.out_features for layer in linear)
        self._vocabulary, self._hidden = config.vocab_size, config.hidden_size
        self._layers, self._intermediate = config.num_hidden_layers, config.intermediate_size
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or self._hidden // heads
        self._query, self._key_value = heads * head_size, config.num_key_value_heads * head_size

    def kv_cache_bytes(self, tokens: int, dtype: str) -> int:
        """Return the size of the KV cache: ``2 · layers · kv`` values per token."""
        return tokens * 2 * self._layers * self._key_value * BYTES[dtype]

    def activation_bytes(self, tokens: int, checkpointing: bool = False) -> int:
        """Return the size of the float32 activations saved for the backward pass.

        A layer saves, per token, ``3 h`` for each of its two norms (input, normalised, and scaled,
        which is the input of the next projections), ``2 q + 2 kv`` for attention (queries, keys,
        values, result; no score matrix) and ``4 m`` for the MLP (gate, its activation, up,
        product). With gradient checkpointing each layer saves ``h``, and one layer at a time the
        rest.
        """
        per_layer = 6 * self._hidden + 2 * (self._query + self._key_value) + 4 * self._intermediate
        once = self._layers * self._hidden + per_layer
        return tokens * LEARNER_BYTES * (once if checkpointing else self._layers * per_layer)

    def adapter_parameters(self, rank: int) -> int:
        """Return the LoRA parameters: ``rank`` rows and columns per linear layer of the trunk."""
        return rank * self._adapter_rows

    def logit_bytes(self, tokens: int, entropy_bonus: bool = False) -> int:
        """Return the peak size of the output head: copies of V values per response token."""
        copies = LOGIT_COPIES + ENTROPY_COPIES * entropy_bonus
        return copies * tokens * self._vocabulary * LEARNER_BYTES


# Sizes of models on the HuggingFace hub, from their config.json, also valid for "-Instruct":
# vocabulary, hidden and intermediate size, layers, heads, key-value heads, head is tied.
KNOWN_MODELS: dict[str, tuple[type[PretrainedConfig], tuple[int, ...]]] = {
    "Qwen/Qwen2.5-0.5B": (Qwen2Config, (151936, 896, 4864, 24, 14, 2, True)),
    "Qwen/Qwen2.5-1.5B": (Qwen2Config, (151936, 1536, 8960, 28, 12, 2, True)),
    "Qwen/Qwen2.5-3B": (Qwen2Config, (151936, 2048, 11008, 36, 16, 2, True)),
    "Qwen/Qwen2.5-7B": (Qwen2Config, (152064, 3584, 18944, 28, 28, 4, False)),
    "HuggingFaceTB/SmolLM2-135M": (LlamaConfig, (49152, 576, 1536, 30, 9, 3, True)),
    "HuggingFaceTB/SmolLM2-360M": (LlamaConfig, (49152, 960, 2560, 32, 15, 5, True)),
    "HuggingFaceTB/SmolLM2-1.7B": (LlamaConfig, (49152, 2048, 8192, 24, 32, 32, True)),
}
_SIZES: tuple[str, ...] = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
_SIZES += ("num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


@dataclass(frozen=True)
class Resources:
    """Resources that one kind of process requests from Ray, for each of `count` processes."""

    process: str
    count: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class MemoryItem:
    """A part of a process's memory; `size` is in bytes, `where` is the location."""

    process: str
    where: str
    what: str
    size: int


def resources(config: RunConfig) -> list[Resources]:
    """Return the resources that `hgpo train` requests from Ray, by process.

    Environments, rollouts and a single learner run in the main process, which reserves no CPU
    (under Tune it is an actor with one CPU). Serve's controller and Ray's own processes reserve
    nothing.
    """
    server, cluster = config.policy_server, config.cluster
    replicas = Resources(REPLICA, server.num_replicas, server.replica_cpus, server.replica_gpus)
    if cluster.num_learners == 0:
        return [Resources(MAIN, 1, 0, cluster.learner_gpus), replicas]
    cpus = 0 if cluster.learner_gpus else 1  # RLlib's rule
    learners = Resources(LEARNER, cluster.num_learners, cpus, cluster.learner_gpus)
    return [Resources(ROLLOUTS, 1, 0, 0), learners, replicas]


def memory(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Return the parts of one process of each kind, for prompts and responses of full length."""
    return [*_learner(config, model), *_published(config, model), *_replica(config, model)]


def smallest_gpu(config: RunConfig, model: ModelSize) -> int:
    """Return the GPU memory to decode `max_num_seqs` sequences of full length together, in bytes.

    This is ``(weights + KV cache) / memory_utilization``; on a smaller GPU requests are queued.
    """
    items = _replica(config, model)
    return math.ceil(sum(item.size for item in items) / config.policy_server.memory_utilization)


def _learner(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Count 4 bytes per parameter for weights, gradients and reference, 8 for AdamW's two moments.

    With LoRA, only adapters have gradients and moments, and the base weights are the reference.
    Activations are counted in float32 for any `learner.compute_dtype`. Each of several learners
    holds this much, or a share of it if parameters are sharded.
    """
    where = "GPU" if config.cluster.learner_gpus else "host"
    shards = config.cluster.num_learners if config.learner.shard_parameters else 1
    rank, checkpointing = config.model.lora_rank, config.learner.gradient_checkpointing
    weights = -(-model.parameters * LEARNER_BYTES // shards)
    trained = model.adapter_parameters(rank) * LEARNER_BYTES if rank else weights
    turn = config.agent.max_prompt_tokens + config.agent.max_response_tokens
    tokens = max(turn, config.learner.micro_batch_tokens)  # a long turn is one micro-batch
    responses = tokens * config.agent.max_response_tokens // turn
    parts = [
        ("weights, float32", weights),
        ("gradients, float32", trained),
        ("AdamW's two moments, float32", 2 * trained),
        (f"activations of {tokens:,} tokens", model.activation_bytes(tokens, checkpointing)),
        (
            f"logits of {responses:,} response tokens",
            model.logit_bytes(responses, config.learner.entropy_coeff > 0),
        ),
    ]
    if config.learner.kl_coeff > 0 and not rank:
        parts.insert(3, ("reference model, float32", weights))
    if config.learner.critic == "separate":  # one on the policy's trunk adds a single row
        critic = -(-model.trunk_parameters * LEARNER_BYTES // shards)
        prompts = tokens - responses
        parts += [
            ("critic: weights, gradients, AdamW's moments, float32", 4 * critic),
            (
                f"critic: activations of {prompts:,} prompt tokens",
                model.activation_bytes(prompts, checkpointing),
            ),
        ]
    process = LEARNER if config.cluster.num_learners else MAIN
    items = [MemoryItem(process, where, what, size) for what, size in parts]
    if config.learner.shard_parameters:
        whole = model.parameters * LEARNER_BYTES
        items.append(MemoryItem(f"first {LEARNER}", "host", "whole weights, float32", whole))
    return items


def _published(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Count versions in Ray's object store, and a copy per replica while it loads one."""
    dtype, replicas = config.model.dtype, config.policy_server.num_replicas
    rank = config.model.lora_rank
    size = (model.adapter_parameters(rank) if rank else model.parameters) * BYTES[dtype]
    store = f"{PUBLISHED_VERSIONS} versions of the weights in Ray's object store, {dtype}"
    copies = f"replicas: {replicas}, one copy each, {dtype}"
    return [
        MemoryItem("published weights", "/dev/shm", store, PUBLISHED_VERSIONS * size),
        MemoryItem("weights that are being loaded", "host", copies, replicas * size),
    ]


def _replica(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Count weights and KV cache: on a CPU of the configured size, on a GPU for full sequences."""
    server, agent, dtype = config.policy_server, config.agent, config.model.dtype
    where = "GPU" if server.replica_gpus else "host"
    if server.replica_gpus:
        turn = agent.max_prompt_tokens + agent.max_response_tokens
        what = f"KV cache of {server.max_num_seqs} sequences of {turn:,} tokens"
        cache = model.kv_cache_bytes(server.max_num_seqs * turn, dtype)
    else:
        what, cache = "KV cache (cpu_kv_cache_gib)", server.cpu_kv_cache_gib * 2**30
    weights = model.parameters * BYTES[dtype]
    return [
        MemoryItem(REPLICA, where, f"weights, {dtype}", weights),
        MemoryItem(REPLICA, where, what, cache),
    ]


def find_size(config: RunConfig) -> ModelSize | None:
    """Return the size of the run's model, from a local config.json, the table or the pocket model.

    Nothing is downloaded. Returns None for names missing in the table and other architectures.

    Raises:
        ConfigError: the model's config.json is invalid.
    """
    name = config.model.model_path
    if name is None:
        warm = config.warm_start
        vocabulary, heads = -(-warm.vocabulary // 64) * 64, warm.hidden_size // POCKET_HEAD_SIZE
        mlp = 3 * warm.hidden_size
        sizes = (vocabulary, warm.hidden_size, mlp, warm.layers, heads, 1, True)
        return ModelSize(Qwen2Config(**dict(zip(_SIZES, sizes, strict=True))))
    known = KNOWN_MODELS.get(name.removesuffix("-Instruct"))
    if known is not None:
        return ModelSize(known[0](**dict(zip(_SIZES, known[1], strict=True))))
    file = Path(name) / "config.json"
    if not file.is_file():
        return None
    try:
        return ModelSize(AutoConfig.from_pretrained(name))
    except AttributeError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"model.model_path: {file} is no model config ({reason})") from error
