"""Transfer new weights from a replica to the processes of its engine.

vLLM runs the model in child processes of the replica, which are not Ray workers. Ray maps an object
into the replica but cannot share the mapping with them. The replica therefore writes the weights to
memory with a file descriptor, which the engine's processes map. LoRA adapters are small: the
replica writes them to a folder in peft's format, which vLLM loads.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hgpo_rllib.policy_server.types import PublishedWeights


@asynccontextmanager
async def shared_with_engine(weights: PublishedWeights) -> AsyncIterator[dict[str, Any]]:
    """Copy weights to memory that child processes can map, and free it after the block.

    The memory is not in a file system. The kernel frees it with the last process that uses it, and
    the size of ``/dev/shm`` does not limit it.

    Yields:
        Arguments of `mapped_tensors`.
    """
    descriptor = os.memfd_create("hgpo-weights")
    try:
        await asyncio.to_thread(_write, weights, descriptor)
        yield {
            "path": f"/proc/{os.getpid()}/fd/{descriptor}",
            "dtype": weights.dtype,
            "names": list(weights.tensors),
            "shapes": [list(array.shape) for array in weights.tensors.values()],
        }
    finally:
        os.close(descriptor)


def _write(weights: PublishedWeights, descriptor: int) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        for array in weights.tensors.values():
            file.write(array.reshape(-1).data)


def mapped_tensors(
    path: str, dtype: str, names: list[str], shapes: list[list[int]]
) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors of `shared_with_engine` with their names, as views of its memory."""
    sizes = [prod(shape) for shape in shapes]
    values = torch.from_file(path, size=sum(sizes), dtype=getattr(torch, dtype))
    parts = values.split(sizes)
    return [
        (name, part.view(shape)) for name, part, shape in zip(names, parts, shapes, strict=True)
    ]


@contextmanager
def adapter_folder(weights: PublishedWeights) -> Iterator[Path]:
    """Write published adapters to a temporary folder, which is deleted when the block ends."""
    assert weights.adapter is not None, "these are weights of a whole model"
    dtype = getattr(torch, weights.dtype)
    tensors = {name: torch.tensor(array).view(dtype) for name, array in weights.tensors.items()}
    with tempfile.TemporaryDirectory(prefix="hgpo-adapter-") as name:
        folder = Path(name)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(weights.adapter))
        yield folder
