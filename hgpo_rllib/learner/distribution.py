"""Data parallelism: each learner processes a share of every mini-batch; gradients are summed.

All learners receive all rows, so mini-batches and token weights are the same as with one learner.
The sum of gradients therefore equals the gradient of one learner, even if the shares are uneven.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils import checkpoints
from ray.tune.utils.file_transfer import sync_dir_between_nodes
from torch import Tensor

from hgpo_rllib.learner.batching import Columns, last_rows, micro_batches
from hgpo_rllib.section import RunStoppedError

T = TypeVar("T")

# RLlib copies the state of a learner on another node as an archive, limited to 1 GiB by default,
# which is less than the optimiser state of most models.
checkpoints.sync_dir_between_nodes = partial(sync_dir_between_nodes, max_size_bytes=None)


def whole_batch(group: LearnerGroup, columns: Columns, env_steps: int) -> TrainingData:
    """Return the same batch for all learners of a group, which read one copy if they are remote.

    RLlib would split a single batch among them.
    """
    batch = MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=env_steps)
    if group.is_remote:
        return TrainingData(batch_refs=[ray.put(batch)] * len(group))
    return TrainingData(batch=batch)


def on_learners(group: LearnerGroup, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function on all learners and return the first one's result.

    Arguments are sent once, whatever the number of learners. Raises the first error of a learner.
    """
    given = ray.put(arguments) if group.is_remote else arguments
    results = [r.get() for r in group.foreach_learner(partial(_call, function, given))]
    if failed := [result for result in results if isinstance(result, Exception)]:
        raise failed[0]
    return results[0]


def check_healthy(group: LearnerGroup) -> None:
    """Raise RunStoppedError if a learner has failed in a call whose errors RLlib does not raise.

    These are the calls that save and restore the learners' state on the node of the main process.
    """
    if group.is_remote and group._worker_manager.num_healthy_actors() < len(group):
        raise RunStoppedError(
            "a learner process failed while it saved or loaded its state: its log is in the folder "
            "of Ray's session"
        )


def _call(function: Callable[..., T], given: Any, learner: Learner) -> T | None:
    result = function(learner, *(ray.get(given) if isinstance(given, ray.ObjectRef) else given))
    return result if rank() == 0 else None  # the others' results would only be sent and dropped


@contextlib.contextmanager
def stopped_by_learners() -> Iterator[None]:
    """Raise RunStoppedError if a learner process stops the run or dies in the block.

    If it dies, Ray raises the error of that process or of another learner that was waiting for it.
    In the latter, gloo reports a connection closed or reset by its peer. In a learner's own
    RunStoppedError, Ray replaces the message by the traceback.
    """
    try:
        yield
    except RayError as error:
        if isinstance(error, RayTaskError) and isinstance(error.cause, RunStoppedError):
            raise error.cause from error
        if isinstance(error, RayActorError) or "by peer" in str(error):
            raise RunStoppedError("a learner process died") from error
        raise


def rank() -> int:
    """Return the rank of this learner, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of learners."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], learner: int, learners: int
) -> NDArray[np.int64]:
    """Return the rows of one of several learners, balanced by length."""
    return rows[np.argsort(lengths[rows], kind="stable")][learner::learners]


def passes(
    columns: Columns, rows: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int
) -> list[NDArray[np.int64]]:
    """Return this learner's share of the rows in micro-batches, padded with empty ones.

    All learners get the same number of micro-batches. Rows of one sequence stay together.
    """
    last, sequence = last_rows(columns, rows)
    parts = [
        list(micro_batches(share(last, lengths, learner, world_size()), lengths, max_tokens))
        for learner in range(world_size())
    ]
    own = parts[rank()]
    if "sequence" in columns:
        own = [rows[np.isin(last[sequence], part)] for part in own]
    return own + [rows[:0]] * (max(map(len, parts)) - len(own))


def all_gather(value: T) -> list[T]:
    """Return every learner's value, in rank order."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def join(parts: Tensor, device: torch.device) -> Tensor:
    """Merge the parts of a tensor from all learners; elements that no learner has are NaN.

    `parts` is this learner's part, in host memory, NaN elsewhere. At most one learner has each
    element. The learner's `device` is used for the transfer.
    """
    if world_size() == 1:
        return parts
    computed = ~parts.isnan()
    sums = torch.stack([parts.nan_to_num(0.0), computed.to(parts.dtype)]).to(device)
    dist.all_reduce(sums)
    values, owners = sums.cpu()
    return values.masked_fill(owners == 0, torch.nan)
