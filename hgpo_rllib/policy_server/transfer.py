"""Published weights on another node than the learner's: copied there through Ray, for one load.

Imports little: Ray starts a process on the learner's node for `read_pieces`.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hgpo_rllib.policy_server.types import WeightTag

SHARED_MEMORY = Path("/dev/shm")  # a memory file system that every process of a node sees
PREFIX = "hgpo-weights-"
WEIGHTS_FILE = "model.safetensors"
PIECE = 16 * 2**20  # bytes that travel as one object of Ray's
PIECES_AHEAD = 4  # read before they are asked for; bounds what they take of Ray's memory


def this_node() -> str | None:
    """Ray's name of this process's node; None without Ray."""
    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else None


def make_weights_folder() -> Path:
    """A new folder in shared memory, named after this process (see `remove_stale_weights`)."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def remove_stale_weights() -> None:
    """Remove weights that a killed process left in this node's shared memory."""
    for folder in SHARED_MEMORY.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def weights_here(tag: WeightTag) -> AsyncIterator[str]:
    """The checkpoint directory of published weights, as this node sees it.

    On the node that published them it is their own directory, elsewhere a copy in shared memory
    that is removed at the end.
    """
    assert tag.path is not None
    if tag.node in (None, this_node()):
        yield tag.path
        return
    folder = make_weights_folder()
    try:
        source = Path(tag.path) / WEIGHTS_FILE
        await asyncio.to_thread(copy_from_node, tag.node, source, folder / WEIGHTS_FILE)
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_from_node(node: str, source: Path, target: Path) -> None:
    """Copy the file `source` of another Ray node to `target` on this one.

    No file system has to be shared; each caller gets a copy of its own.
    """
    pieces = read_pieces.options(
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        _generator_backpressure_num_objects=PIECES_AHEAD,
    ).remote(str(source), PIECE)
    with target.open("wb") as file:
        for piece in pieces:
            file.write(ray.get(piece))


@ray.remote(num_cpus=0)
def read_pieces(path: str, size: int) -> Iterator[bytes]:
    """The content of a file of the node that this runs on, `size` bytes at a time."""
    with Path(path).open("rb") as file:
        while piece := file.read(size):
            yield piece
