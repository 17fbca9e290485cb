"""Estimate the Ray resources and the memory of a run from its settings.

The functions are pure and take a model's size. They count weights, optimiser, reference and KV
cache, and the largest parts of a backward pass. They exclude the overhead of torch, vLLM, Ray and
CUDA (`GPU_OVERHEAD`), the games, and fragmentation.
"""

import math
from dataclasses import dataclass

from hgpo_rllib.config import RunConfig
from hgpo_rllib.placement import learner_resources, replica_resources
from hgpo_rllib.run.flops import full_turn
from hgpo_rllib.run.model_size import BYTES, ModelSize
from hgpo_rllib.settings.learner import Dtype, dtype_of_passes

LEARNER_BYTES = 4  # the learner's weights, gradients and moments are float32
PUBLISHED_VERSIONS = 2  # in the object store: the one being written, and the previous one
GPU_OVERHEAD = 2 * 2**30  # of a process: CUDA context, workspaces, graphs, fragmentation
PREFILL = 2**30  # activations and logits of an engine's largest pass
MOMENTS = "AdamW's two moments, float32"

MAIN = "main process with learner"
ROLLOUTS = "main process"
LEARNER = "learner"
REPLICA = "policy server replica"


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

    Environments, rollouts and, without learner processes, the learner run in the main process,
    which reserves no CPU (under Tune it is an actor with one CPU). Serve's controller and Ray's own
    processes reserve nothing.
    """
    server, cluster = config.policy_server, config.cluster
    processes = [
        (LEARNER, cluster.num_learners, learner_resources(cluster, server)),
        (REPLICA, server.num_replicas, replica_resources(server)),
    ]
    main = Resources(ROLLOUTS if cluster.num_learners else MAIN, 1, 0, 0)
    return [
        main,
        *(
            Resources(name, count, amounts.get("CPU", 0), amounts.get("GPU", 0))
            for name, count, amounts in processes
            if count
        ),
    ]


def memory(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Return the parts of one process of each kind, for prompts and responses of full length."""
    return [*_learner(config, model), *_published(config, model), *_replica(config, model)]


def smallest_gpu(config: RunConfig, model: ModelSize) -> int:
    """Return the GPU memory to decode `max_num_seqs` sequences of full length together, in bytes.

    This is ``(weights + KV cache + PREFILL) / memory_utilization``; on a smaller GPU requests are
    queued.
    """
    size = sum(item.size for item in _replica(config, model)) + PREFILL
    return math.ceil(size / config.policy_server.memory_utilization)


def _learner(config: RunConfig, model: ModelSize) -> list[MemoryItem]:
    """Return the parts of one learner; several learners hold the same, or shards."""
    where = "GPU" if config.cluster.learner_gpus else "host"
    dtype = dtype_of_passes(config.learner.compute_dtype, on_gpu=where == "GPU")
    process = LEARNER if config.cluster.num_learners else MAIN
    parts, one_pass = _stored(config, model, dtype), _one_pass(config, model, dtype)
    items = []
    if config.learner.offload_optimizer:
        moments = parts.pop(MOMENTS)
        items.append(MemoryItem(process, "host", MOMENTS, moments))
        beyond = moments - sum(one_pass.values())
        if beyond > 0:
            parts["moments in a step, beyond a pass"] = beyond
    parts |= one_pass
    items = [*(MemoryItem(process, where, what, size) for what, size in parts.items()), *items]
    if config.learner.shard_parameters:
        whole = model.parameters * LEARNER_BYTES
        items.append(MemoryItem(f"first {LEARNER}", "host", "whole weights, float32", whole))
    return items


def _stored(config: RunConfig, model: ModelSize, dtype: Dtype) -> dict[str, int]:
    """Return what a learner holds all the time, by name: a share of it if parameters are sharded.

    4 bytes per parameter for weights and gradients, 8 for AdamW's two moments. With LoRA, only
    adapters and critic have gradients and moments, and the base weights are the reference.
    """
    shards = config.cluster.num_learners if config.learner.shard_parameters else 1
    rank, whole = config.model.lora_rank, model.parameters * LEARNER_BYTES
    adapters = model.adapter_parameters(rank) * LEARNER_BYTES
    # A critic on the policy's trunk adds a single row.
    has_model = config.learner.critic == "separate"
    critic = model.trunk_parameters * LEARNER_BYTES if has_model else 0
    trained = (adapters if rank else whole) + critic
    parts = {"weights, float32": whole + adapters}
    if critic:
        parts["weights of the critic, float32"] = critic
    parts |= {"gradients, float32": trained, MOMENTS: 2 * trained}
    if config.learner.kl_coeff > 0 and not rank:
        parts[f"reference model, {dtype}"] = model.frozen_bytes(dtype)
    return {what: -(-size // shards) for what, size in parts.items()}


def _one_pass(config: RunConfig, model: ModelSize, dtype: Dtype) -> dict[str, int]:
    """Return what a forward and backward pass of the learner adds, by name."""
    learner, rank, turn = config.learner, config.model.lora_rank, full_turn(config)
    checkpointing, critic = learner.gradient_checkpointing, learner.critic == "separate"
    tokens = max(turn.tokens, learner.micro_batch_tokens)  # a long turn is one micro-batch
    responses = tokens * turn.response // turn.tokens
    parts = {}
    if learner.shard_parameters:
        gathered = model.gathered_bytes(trained=not rank)
        parts["layers gathered from other learners"] = gathered * (1 + critic)
    elif not rank:
        parts["gradient of the head before it is added"] = model.head * LEARNER_BYTES
    if dtype != "float32":
        converted = model.converted_bytes(dtype, checkpointing)
        parts[f"matrices of a pass, {dtype}"] = converted * (1 + critic)
    activations = model.activation_bytes(tokens, dtype, checkpointing)
    parts[f"activations of {tokens:,} tokens"] = activations
    logits = model.logit_bytes(responses, learner.entropy_coeff > 0)
    parts[f"logits of {responses:,} response tokens"] = logits
    if critic:
        prompts = tokens - responses
        activations = model.activation_bytes(prompts, dtype, checkpointing)
        parts[f"critic: activations of {prompts:,} prompt tokens"] = activations
    return parts


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
    server, dtype = config.policy_server, config.model.dtype
    where = "GPU" if server.replica_gpus else "host"
    if server.replica_gpus:
        turn = full_turn(config).tokens
        what = f"KV cache of {server.max_num_seqs} sequences of {turn:,} tokens"
        cache = model.kv_cache_bytes(server.max_num_seqs * turn, dtype)
    else:
        what, cache = "KV cache (cpu_kv_cache_gib)", server.cpu_kv_cache_gib * 2**30
    weights = model.parameters * BYTES[dtype]
    return [
        MemoryItem(REPLICA, where, f"weights, {dtype}", weights),
        MemoryItem(REPLICA, where, what, cache),
    ]
