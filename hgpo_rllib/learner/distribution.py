"""Several learners: each takes a share of every mini-batch, and gradients are summed.

All of them get all rows, so that mini-batches and the weights of tokens are those of a single
learner; the sum of their gradients then is its gradient, however uneven the shares.
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
from ray.exceptions import RayActorError, RayError
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.policy.sample_batch import MultiAgentBatch
from torch import Tensor

from hgpo_rllib.learner.batching import micro_batches
from hgpo_rllib.section import RunStoppedError

T = TypeVar("T")


class WholeBatches(TrainingData):
    """Training data that every learner gets whole (RLlib cuts it up between them)."""

    def shard(self, num_shards: int, *args: Any, **kwargs: Any) -> list[tuple[TrainingData, dict]]:
        """The same for all."""
        return [(TrainingData(batch_refs=self.batch_refs), {}) for _ in range(num_shards)]


def whole_batch(group: LearnerGroup, batch: MultiAgentBatch) -> TrainingData:
    """The batch for all learners of a group; remote ones read one copy in the object store."""
    if group.is_remote:
        return WholeBatches(batch_refs=[ray.put(batch)])
    return TrainingData(batch=batch)


def on_learners(group: LearnerGroup, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of all learners; the first one's result, or the error of any.

    Arguments are sent once, whatever the number of learners.
    """
    given = ray.put(arguments) if group.is_remote else arguments
    results = [r.get() for r in group.foreach_learner(partial(_call, function, given))]
    if failed := [result for result in results if isinstance(result, Exception)]:
        raise failed[0]
    return results[0]


def _call(function: Callable[..., T], given: Any, learner: Learner) -> T:
    return function(learner, *(ray.get(given) if isinstance(given, ray.ObjectRef) else given))


@contextlib.contextmanager
def name_lost_learners() -> Iterator[None]:
    """Raise RunStoppedError, one line, when a learner process has ended in the block.

    Ray raises the error of that process, or of another learner that waited for it: there gloo says
    that a connection was closed or reset by its peer.
    """
    try:
        yield
    except RayError as error:
        if isinstance(error, RayActorError) or "by peer" in str(error):
            raise RunStoppedError("a learner process has ended") from error
        raise


def rank() -> int:
    """Number of this learner, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def learners() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], of: int, count: int
) -> NDArray[np.int64]:
    """The rows that learner `of` out of `count` takes: dealt out by length, so all have as much."""
    return rows[np.argsort(lengths[rows], kind="stable")][of::count]


def passes(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], max_tokens: int
) -> list[NDArray[np.int64]]:
    """This learner's share of the rows, in micro-batches; as many of them as any learner has.

    Those that it lacks are empty.
    """
    parts = [
        list(micro_batches(share(rows, lengths, of, learners()), lengths, max_tokens))
        for of in range(learners())
    ]
    own = parts[rank()]
    return own + [rows[:0]] * (max(map(len, parts)) - len(own))


def sum_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Add up what the learners have; every parameter has a gradient."""
    if learners() == 1:
        return
    works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
    for work in works:
        work.wait()


def gather(value: T) -> list[T]:
    """What each learner has, in the order of their ranks."""
    if learners() == 1:
        return [value]
    values: list[Any] = [None] * learners()
    dist.all_gather_object(values, value)
    return values


def join(parts: Tensor, device: torch.device) -> Tensor:
    """One tensor of what each learner has of it; NaN is what no learner has.

    Args:
        parts: in host memory; no element was computed by two learners.
        device: of the learner, which the parts travel by.
    """
    if learners() == 1:
        return parts
    computed = ~parts.isnan()
    sums = torch.stack([parts.nan_to_num(0.0), computed.to(parts.dtype)]).to(device)
    dist.all_reduce(sums)
    values, owners = sums.cpu()
    return values.masked_fill(owners == 0, torch.nan)
