"""Data parallelism: each learner processes a share of every mini-batch; gradients are summed.

All learners receive all rows, so mini-batches and token weights are the same as with one learner.
The sum of gradients therefore equals the gradient of one learner, even if the shares are uneven.
"""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from logging.handlers import QueueHandler
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from ray.air.util.node import _force_on_node, _get_node_id_from_node_ip
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils import checkpoints
from ray.tune.utils import file_transfer
from ray.tune.utils.file_transfer import sync_dir_between_nodes
from torch import Tensor

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.learner.batching import Columns, last_rows, micro_batches
from hgpo_rllib.settings.learner import LearnerSettings

T = TypeVar("T")


def copy_folder(
    source_ip: str, source: str | PathLike[str], target_ip: str, target: str, **options: Any
) -> None:
    """Copy a folder of another node to this one, or link its entries if both nodes share it.

    Ray copies it through the memory of both nodes, and for each learner when a run resumes.
    """
    own = file_transfer._get_recursive_files_and_stats(str(source))
    if own:
        stats = file_transfer._remote_get_recursive_files_and_stats.options(
            num_cpus=0, **_force_on_node(_get_node_id_from_node_ip(source_ip))
        )
        if ray.get(stats.remote(str(source))) == own:  # times and sizes of all files
            for entry in Path(source).absolute().iterdir():
                (Path(target) / entry.name).symlink_to(entry)
            return
    sync_dir_between_nodes(source_ip, str(source), target_ip, target, **options)


# RLlib copies the state of a learner on another node as an archive, limited to 1 GiB by default,
# which is less than the optimizer state of most models.
checkpoints.sync_dir_between_nodes = partial(copy_folder, max_size_bytes=None)


class OwnAddressStore(dist.TCPStore):
    """Key-value store of torch's process group that listens only on the address of its node.

    torch's own listens on all interfaces, without authentication.
    """

    def __init__(self, host_name: str, port: int, *args: Any, is_master: bool, **kwargs: Any):
        """Listen on `port` of `host_name`, or connect to it; see `torch.distributed.TCPStore`."""
        if is_master:
            family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
            listener = socket.create_server((host_name, port), family=family)
            kwargs["master_listen_fd"] = listener.detach()
        super().__init__(host_name, port, *args, is_master=is_master, **kwargs)


# torch creates the store of a process group by this name. The module is imported by its path, as
# `torch.distributed.rendezvous` is also a function.
import_module("torch.distributed.rendezvous").TCPStore = OwnAddressStore  # type: ignore[attr-defined]


def update(learner: Learner, columns: Columns, env_steps: int) -> dict[str, Any]:
    """Update a learner with all rows; `LearnerGroup.update` would split them among learners."""
    batch = MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=env_steps)
    return learner.update(batch=batch)


def on_learners(group: LearnerGroup, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on all learners and return the first one's result.

    Arguments are sent once, whatever the number of learners. Raises the error of a learner as soon
    as it occurs: the others may wait for it in NCCL, until Ray's timeout of 30 minutes. RLlib's
    calls wait for all learners, and leave out those that have failed before.
    """
    if group.is_local:
        return function(group._learner, *arguments)
    call = partial(_call, function, ray.put(arguments))
    calls = left = [learner.apply.remote(call) for learner in group._workers]
    found = {}
    while left:
        (done,), left = ray.wait(left)
        found[done] = ray.get(done)
    result, records = found[calls[0]]  # the first worker has rank 0
    for record in records:
        logging.getLogger(record.name).handle(record)
    return result


def check_healthy(group: LearnerGroup) -> None:
    """Raise RunStoppedError if a learner has failed in a call whose errors RLlib does not raise.

    These are the calls that save the state on the node of the main process, and those that restore
    it, on any node.
    """
    if group.is_remote and group._worker_manager.num_healthy_actors() < len(group):
        raise RunStoppedError(
            "a learner process failed while it saved or loaded its state: see its log in ray_logs/ "
            "of the run directory, or in the folder of Ray's session on your cluster"
        )


def _call(
    function: Callable[..., T], arguments: ray.ObjectRef, learner: Learner
) -> tuple[T | None, list[logging.LogRecord]]:
    """Return the first learner's result and warnings; those of the others are the same.

    The main process logs the warnings, because Ray does not show the output of actors.
    """
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    project, handler = logging.getLogger("hgpo_rllib"), QueueHandler(records)
    project.addHandler(handler)
    try:
        result = function(learner, *ray.get(arguments))
    finally:
        project.removeHandler(handler)
    warnings = [records.get() for _ in range(records.qsize())]
    return (result, warnings) if rank() == 0 else (None, [])


@contextlib.contextmanager
def stopped_by_learners() -> Iterator[None]:
    """Raise RunStoppedError if a learner process stops the run or dies in the block.

    If it dies, Ray raises an error of that process (its memory monitor has one of its own), or that
    of another learner that was waiting for it. In the latter, gloo reports a connection closed or
    reset by its peer. In a learner's own RunStoppedError, Ray replaces the message by the
    traceback.
    """
    try:
        yield
    except RayError as error:
        if isinstance(error, RayTaskError) and isinstance(error.cause, RunStoppedError):
            raise error.cause from error
        if isinstance(error, OutOfMemoryError):
            raise RunStoppedError(
                "a learner process was killed: its node is out of memory"
            ) from error
        if isinstance(error, RayActorError) or "by peer" in str(error):
            raise RunStoppedError("a learner process died") from error
        raise


def rank() -> int:
    """Return the rank of this learner, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of learners."""
    return dist.get_world_size() if dist.is_initialized() else 1


def learners_on_node(learners: int) -> int:
    """Return the maximum number of learners on this node: each of several needs a GPU."""
    if learners <= 1:
        return 1
    here = ray.get_runtime_context().get_node_id()
    (gpus,) = (n["Resources"].get("GPU", 1) for n in ray.nodes() if n["NodeID"] == here)
    return max(1, min(learners, int(gpus)))


def share(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], learner: int, learners: int
) -> NDArray[np.int64]:
    """Return the rows of one of several learners, balanced by length."""
    return rows[np.argsort(lengths[rows], kind="stable")][learner::learners]


def local_micro_batches(
    columns: Columns, rows: NDArray[np.int64], lengths: NDArray[np.int64], settings: LearnerSettings
) -> list[NDArray[np.int64]]:
    """Return this learner's share of the rows in micro-batches. Rows of one sequence stay together.

    With sharded parameters, which are gathered layer by layer, all learners need as many: some of
    them are then empty.
    """
    last, sequence = last_rows(columns, rows)
    size, learners = settings.micro_batch_tokens, world_size()
    parts = {
        learner: list(micro_batches(share(last, lengths, learner, learners), lengths, size))
        for learner in (range(learners) if settings.shard_parameters else (rank(),))
    }
    own = parts[rank()]
    if "sequence" in columns:
        own = [rows[np.isin(last[sequence], part)] for part in own]
    return own + [rows[:0]] * (max(map(len, parts.values())) - len(own))


def all_gather(value: T) -> list[T]:
    """Return every learner's value, in rank order. Collective: all learners call this together."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def merge_across_learners(parts: Tensor, device: torch.device) -> Tensor:
    """Merge the parts of a tensor from all learners; elements that no learner has are NaN.

    Collective: all learners call this together. `parts` is this learner's part, in host memory, NaN
    elsewhere. At most one learner has each element. The learner's `device` is used for the
    transfer.
    """
    if world_size() == 1:
        return parts
    computed = ~parts.isnan()
    sums = torch.stack([parts.nan_to_num(0.0), computed.to(parts.dtype)]).to(device)
    dist.all_reduce(sums)
    values, owners = sums.cpu()
    return values.masked_fill(owners == 0, torch.nan)
