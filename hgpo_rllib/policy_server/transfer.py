"""The last hop of new weights: from a replica to the processes of its engine.

vLLM runs the model in processes of its own below the replica, which Ray does not know. Ray maps an
object into the replica, but has no way to hand the mapping on: the replica writes the weights into
memory that has a file descriptor, and the engine's processes map that.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import prod
from typing import Any

import torch

from hgpo_rllib.policy_server.types import PublishedWeights


@asynccontextmanager
async def shared_with_engine(weights: PublishedWeights) -> AsyncIterator[dict[str, Any]]:
    """Copy weights to where processes below this one can map them; freed at the end.

    The memory belongs to no file system: it goes with its last process, however that one ends, and
    the size of ``/dev/shm`` does not limit it.

    Returns:
        Plain values for `mapped_tensors`.
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
    """The weights that `shared_with_engine` shares, by name: views of its memory, not copies."""
    sizes = [prod(shape) for shape in shapes]
    values = torch.from_file(path, size=sum(sizes), dtype=getattr(torch, dtype))
    parts = values.split(sizes)
    return [
        (name, part.view(shape)) for name, part, shape in zip(names, parts, shapes, strict=True)
    ]
