"""Estimate a run's memory, and the tokens, FLOP and seconds of its iterations, from its settings.

The functions are pure and take a model's size. Memory: weights, optimizer, reference and KV cache,
and the largest parts of a backward pass, without the overhead of torch, vLLM, Ray and CUDA
(`GPU_OVERHEAD`), the games, and fragmentation. FLOP: products of matrices (2 per parameter and
token forward, 4 backward) and attention.
"""

import math
from dataclasses import dataclass

from hgpo_rllib.advantages.estimators import NEEDS_TOKEN_VALUES, TEACHERS
from hgpo_rllib.config import RunConfig
from hgpo_rllib.placement import processes_by_gpu
from hgpo_rllib.run.model_size import BYTES, ModelSize
from hgpo_rllib.settings.learner import Dtype, resolve_compute_dtype
from hgpo_rllib.settings.policy_server import GPU_TRANSPORTS

LEARNER_BYTES = 4  # the learner's weights, gradients and moments are float32
PUBLISHED_VERSIONS = 2  # in the object store: the one being written, and the previous one
GPU_OVERHEAD = 2 * 2**30  # of a process: CUDA context, workspaces, graphs, fragmentation
PREFILL = 2**30  # activations and logits of an engine's largest pass
GRADIENTS = "gradients, float32"
GATHERED = "layers gathered from other learners"
MOMENTS = "AdamW's two moments, float32"

MAIN = "main process with learner"
LEARNER = "learner"
REPLICA = "policy server replica"

PEAK_FLOPS = {"H100": 989e12, "A100": 312e12, "RTX 4090": 165e12, "L4": 121e12}
"""FLOP/s of dense bfloat16 products with float32 sums, from NVIDIA's data sheets (H100: SXM)."""
MFU = 0.4
"""Share of `PEAK_FLOPS` that the estimate of seconds assumes."""


@dataclass(frozen=True)
class SequenceLength:
    """Tokens of a sequence that the model computes at once: a turn, or `turns` of a conversation.

    A conversation's messages to the model count as `prompt`, its responses as `response`.
    """

    prompt: int
    response: int
    turns: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of prompt and response."""
        return self.prompt + self.response

    @property
    def last_prompt(self) -> int:
        """Tokens of the prompt of the last turn, which contains the turns before."""
        return self.tokens - self.response // self.turns


TYPICAL = {"alfworld_full": SequenceLength(450, 150)}
"""Mean turn by prompt, of Qwen2.5 with K = 2.

ALFWorld: in a log of such a run (https://github.com/ZJU-REAL/SDAR/issues/51), the first iteration
has 3,830,959 tokens in 128 episodes of at most 50 steps, i.e. 600 per turn. Prompts have 1,350
characters on average (24 generated games, random actions) plus the chat template.
"""


def full_sequence(config: RunConfig) -> SequenceLength:
    """Return the full length: of a turn, or of a conversation of as many responses as fit."""
    prompt, response = config.agent.max_prompt_tokens, config.agent.max_response_tokens
    turns = 1
    if config.agent.context == "conversation":
        turns = min(config.env.max_steps, 1 + (prompt - 1) // response)
    return SequenceLength(prompt - (turns - 1) * response, turns * response, turns)


@dataclass(frozen=True)
class MemoryItem:
    """A part of a process's memory; `size` is in bytes, `where` is the location."""

    process: str
    where: str
    what: str
    size: int


def memory(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Return the parts of one process of each kind, for prompts and responses of full length."""
    return [*_learner(config, model), *_published(config, model), *_replica(config, model)]


def smallest_gpu(config: RunConfig, model: ModelSize) -> int:
    """Return the GPU memory to decode `max_num_seqs` sequences of full length together, in bytes.

    This is ``((weights + KV cache) / tensor_parallel_size + PREFILL) / memory_utilization``; on a
    smaller GPU requests are queued.
    """
    server = config.policy_server
    engine = sum(item.size for item in _replica(config, model) if item.where == "GPU")
    return math.ceil((engine / server.tensor_parallel_size + PREFILL) / server.memory_utilization)


def gpu_sizes(config: RunConfig, model: ModelSize) -> list[float]:
    """Return the memory in bytes that each GPU of the run needs, with `GPU_OVERHEAD` per process.

    An engine takes `memory_utilization` of its GPU, which must hold its weights and `PREFILL`. A
    colocated engine gives this part back during an update; at other times the learner has freed
    gradients and activations.
    """
    server = config.policy_server
    parts = {item.what: item.size for item in _learner(config, model) if item.where == "GPU"}
    peak = kept = sum(parts.values())
    if server.colocate:
        kept = sum(parts.get(what, 0) for what in _stored(config, model) if what != GRADIENTS)
        kept += parts.get(GATHERED, 0)  # by the pass that checks the served policy
    weights = model.parameters * BYTES[config.model.dtype] / server.tensor_parallel_size
    sizes = []
    for learners, replicas in processes_by_gpu(config.cluster, server):
        overhead = (learners + replicas) * GPU_OVERHEAD
        left = 1 - replicas * server.memory_utilization
        shared = (learners * kept + overhead) / left if left > 0 else math.inf
        engine = (weights + PREFILL) / server.memory_utilization if replicas else 0
        sizes.append(max(learners * peak + overhead, shared, engine))
    return sizes


def checkpoint_bytes(config: RunConfig, model: ModelSize) -> int:
    """Return the disk space of the checkpoints: a current, an older and a partial one.

    Each has trained parameters and moments, and the whole policy (`checkpoint/`, `best/`).
    """
    return 3 * (3 * _trained_bytes(config, model) + model.parameters * LEARNER_BYTES)


def compute_dtype(config: RunConfig) -> Dtype:
    """Return the data type of the learner's passes."""
    return resolve_compute_dtype(
        config.learner.compute_dtype, on_gpu=config.cluster.learner_gpus > 0
    )


def _learner(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Return the parts of one learner; several learners hold the same, or shards."""
    on_gpu, sharded = config.cluster.learner_gpus > 0, config.learner.shard_parameters
    where = "GPU" if on_gpu else "host"
    process = LEARNER if config.cluster.num_learners else MAIN
    parts, one_pass = _stored(config, model), _one_pass(config, model)
    items = []
    if config.learner.offload_optimizer:
        moments = parts.pop(MOMENTS)
        items.append(MemoryItem(process, "host", MOMENTS, moments))
        beyond = moments - sum(one_pass.values())
        if beyond > 0:
            parts["moments in a step, beyond a pass"] = beyond
    parts |= one_pass
    items = [*(MemoryItem(process, where, what, size) for what, size in parts.items()), *items]
    if sharded or (on_gpu and config.model.lora_rank):  # a checkpoint has the adapters merged
        whole = model.parameters * LEARNER_BYTES
        items.append(MemoryItem(f"first {LEARNER}", "host", "whole weights, float32", whole))
    if on_gpu:  # whole weights, counted above, are those of a checkpoint too
        what = ("moments" if sharded else "weights and moments") + " of a checkpoint, float32"
        size = (2 if sharded else 3) * _trained_bytes(config, model)
        items.append(MemoryItem(f"first {LEARNER}", "host", what, size))
    return items


def _trained_bytes(config: RunConfig, model: ModelSize) -> int:
    """Return the size of the trained parameters: with LoRA, those of adapters and critic."""
    rank = config.model.lora_rank
    trained = model.adapter_parameters(rank) if rank else model.parameters
    critic = _critic(config, model)
    return LEARNER_BYTES * (trained + (critic.trunk_parameters if critic else 0))


def _critic(config: RunConfig, model: ModelSize) -> ModelSize | None:
    """Return the size of a separate critic; one on the policy's trunk adds hardly anything."""
    separate = config.learner.critic == "separate"
    return model.first_layers(config.learner.critic_layers) if separate else None


def _values_of_tokens(config: RunConfig) -> bool:
    return config.algorithm.estimator in NEEDS_TOKEN_VALUES


def _stored(config: RunConfig, model: ModelSize) -> dict[str, int]:
    """Return what a learner holds all the time, by name: a share of it if parameters are sharded.

    Per trained parameter, 4 bytes of gradients and 8 of AdamW's two moments. With LoRA, the base
    weights are the reference.
    """
    shards = config.cluster.num_learners if config.learner.shard_parameters else 1
    rank, trained = config.model.lora_rank, _trained_bytes(config, model)
    weights = model.parameters + model.adapter_parameters(rank)
    parts = {"weights, float32": weights * LEARNER_BYTES}
    if critic := _critic(config, model):
        parts["weights of the critic, float32"] = critic.trunk_parameters * LEARNER_BYTES
    parts |= {GRADIENTS: trained, MOMENTS: 2 * trained}
    if config.learner.kl_coeff > 0 and not rank:
        dtype = compute_dtype(config)
        parts[f"reference model, {dtype}"] = model.frozen_bytes(dtype)
    parts = {what: -(-size // shards) for what, size in parts.items()}
    if config.policy_server.weight_transport in GPU_TRANSPORTS:
        dtype = config.model.dtype
        parts[f"published weights, {dtype}"] = model.parameters * BYTES[dtype]
    return parts


def _one_pass(config: RunConfig, model: ModelSize) -> dict[str, int]:
    """Return what a forward and backward pass of the learner adds, by name."""
    learner, rank, sequence = config.learner, config.model.lora_rank, full_sequence(config)
    checkpointing, critic = learner.gradient_checkpointing, _critic(config, model)
    models = [model, critic] if critic else [model]
    dtype = compute_dtype(config)
    tokens = max(sequence.tokens, learner.micro_batch_tokens)  # a long sequence is one micro-batch
    responses = tokens * sequence.response // sequence.tokens
    parts = {}
    if learner.shard_parameters:
        gathered = sum(one.gathered_bytes(trained=not rank) for one in models)
        parts[GATHERED] = gathered
    elif not rank:
        parts["gradient of the head before it is added"] = model.head * LEARNER_BYTES
    if dtype != "float32":
        converted = sum(one.converted_bytes(dtype, checkpointing) for one in models)
        parts[f"matrices of a pass, {dtype}"] = converted
    activations = model.activation_bytes(tokens, dtype, checkpointing)
    parts[f"activations of {tokens:,} tokens"] = activations
    at_once = min(responses, model.tokens_at_once)
    logits = model.logit_bytes(at_once, learner.entropy_coeff > 0)
    parts[f"logits of {at_once:,} response tokens"] = logits
    if critic:
        prompts = tokens - responses // sequence.turns
        read, what = (tokens, "") if _values_of_tokens(config) else (prompts, "prompt ")
        activations = critic.activation_bytes(read, dtype, checkpointing)
        parts[f"critic: activations of {read:,} {what}tokens"] = activations
    return parts


def _published(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Count weights in Ray's object store, and a copy per replica while it loads a version.

    A learner process also puts the weights of a checkpoint there, when there is only one version.
    """
    dtype, replicas = config.model.dtype, config.policy_server.num_replicas
    rank = config.model.lora_rank
    size = (model.adapter_parameters(rank) if rank else model.parameters) * BYTES[dtype]
    store = f"{PUBLISHED_VERSIONS} versions of the weights in Ray's object store, {dtype}"
    copies = f"replicas: {replicas}, one copy each, {dtype}"
    items = [
        MemoryItem("published weights", "/dev/shm", store, PUBLISHED_VERSIONS * size),
        MemoryItem("weights that are being loaded", "host", copies, replicas * size),
    ]
    beyond = model.parameters * LEARNER_BYTES - size
    if config.policy_server.weight_transport in GPU_TRANSPORTS:
        items, beyond = [], beyond + size
    if config.cluster.num_learners:
        what = "whole weights in Ray's object store, float32" + ", beyond a version" * bool(items)
        items.append(MemoryItem("checkpoint", "/dev/shm", what, beyond))
    return items


def _replica(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Count weights and KV cache: on a CPU of the configured size, on a GPU for full sequences."""
    server, dtype = config.policy_server, config.model.dtype
    where = "GPU" if server.replica_gpus else "host"
    if server.replica_gpus:
        tokens = full_sequence(config).tokens
        what = f"KV cache of {server.max_num_seqs} sequences of {tokens:,} tokens"
        cache = model.kv_cache_bytes(server.max_num_seqs * tokens, dtype)
        cache *= max(1, server.tensor_parallel_size // model.key_value_heads)  # vLLM copies heads
    else:
        what, cache = "KV cache (cpu_kv_cache_gib)", server.cpu_kv_cache_gib * 2**30
    weights = model.parameters * BYTES[dtype]
    items = [
        MemoryItem(REPLICA, where, f"weights, {dtype}", weights),
        MemoryItem(REPLICA, where, what, cache),
    ]
    if server.colocate:
        asleep = f"weights during an update, {dtype}"
        items.append(MemoryItem(REPLICA, "host", asleep, weights))
    return items


def work(config: RunConfig, model: ModelSize, sequence: SequenceLength) -> dict[str, float]:
    """Return the work of an iteration whose sequences all have this length, by name.

    Every episode has `env.max_steps` steps. Engine and learner compute each conversation once.
    Trained tokens are those of all epochs together, FLOP those of all engines or learners. With
    GPUs there are the seconds of sampling and update on each kind of GPU, at `MFU` of its peak;
    unless the schedule is synchronous, the two overlap if a learner has a whole GPU.
    """
    server, cluster, rollout = config.policy_server, config.cluster, config.rollout
    episodes = rollout.groups_per_iteration * rollout.group_size
    turns = episodes * config.env.max_steps
    sequences = episodes * math.ceil(config.env.max_steps / sequence.turns)
    sampling = sequences * forward_flop(model, sequence.tokens, sequence.response)
    update = sequences * update_flop(config, model, sequence, turns)
    found = {
        "turns": turns,
        "tokens in prompts": sequences * sequence.prompt,
        "tokens sampled": sequences * sequence.response,
        "tokens trained": sequences * sequence.tokens * config.learner.num_epochs,
        "FLOP of sampling": sampling,
        "FLOP of the update": update,
    }
    if server.replica_gpus and cluster.learner_gpus:
        groups = rollout.groups_per_iteration  # a replica plays whole groups, see `GroupRouter`
        most = math.ceil(groups / server.num_replicas)
        sampling *= most / groups / server.tensor_parallel_size
        update /= cluster.num_learners
        overlap = rollout.schedule != "synchronous" and cluster.learner_gpus == 1
        flop = max(sampling, update) if overlap else sampling + update
        found |= {f"seconds on {gpu}": flop / (MFU * peak) for gpu, peak in PEAK_FLOPS.items()}
    return found


def forward_flop(model: ModelSize, tokens: int, responses: int) -> float:
    """Return the FLOP of a forward pass of `tokens`, of which `responses` are of responses.

    Layers multiply all tokens, the head those that predict a response token. A token attends to
    itself and those before it: two products with ``q`` values per layer and position.
    """
    return _products(model, tokens, responses) + _attention(model, tokens)


def _products(model: ModelSize, tokens: int, responses: int) -> float:
    return 2.0 * (model.matrices * tokens + model.head * responses)


def _attention(model: ModelSize, tokens: int) -> float:
    return 4.0 * model.attention * model.layers * tokens * (tokens + 1) / 2


def update_flop(config: RunConfig, model: ModelSize, sequence: SequenceLength, turns: int) -> float:
    """Return the FLOP of one sequence in an update on `turns` turns.

    A backward pass has twice the FLOP of the forward pass, of which LoRA needs half for the frozen
    matrices. Gradient checkpointing computes the layers again, at most: torch leaves out the last
    product of each. With recomputed log-probabilities, all mini-batches but the first have one more
    forward pass.
    """
    learner, lora = config.learner, config.model.lora_rank > 0
    forward = forward_flop(model, sequence.tokens, sequence.response)
    again = learner.gradient_checkpointing
    training = _products(model, sequence.tokens, sequence.response) * (2 if lora else 3)
    training += 3 * _attention(model, sequence.tokens)
    training += again * forward_flop(model, sequence.tokens, 0)
    flop = learner.num_epochs * (training + (learner.kl_coeff > 0) * forward)
    if learner.old_logp == "recomputed":
        flop += forward * (1 - 1 / max(1, round(turns / learner.minibatch_size)))
    if config.algorithm.estimator in TEACHERS:  # without the text that its prompts have in addition
        flop += forward
    critic = _critic(config, model)
    read = sequence.tokens if _values_of_tokens(config) else sequence.last_prompt
    if learner.critic != "none":  # values before the update
        flop += forward_flop(critic or model, read, 0)
    if critic:
        flop += learner.num_epochs * (3 + again) * forward_flop(critic, read, 0)
    return flop
