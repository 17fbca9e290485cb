"""Groups of steps by shared history (Eq. 3 and 4 of the paper)."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.steps import NONE, StepArrays

Contexts = Literal["paper", "released"]


def context_levels(
    steps: StepArrays, context_length: int, contexts: Contexts = "paper"
) -> Iterator[NDArray[np.int64]]:
    """Yield the group of every step at depths k = 0, 1, …, K of shared history.

    Two steps are in the same group at depth k if they belong to the same task and their contexts
    ``C_k = (s_{t-k}, …, s_t)`` are equal (Eq. 3): the step's own anchor and the k before it. Groups
    are nested, ``G_0 ⊇ G_1 ⊇ … ⊇ G_K``. Each level splits the groups of the previous level by one
    more anchor, so it sorts integers instead of comparing histories.

    Args:
        steps: the batch.
        context_length: K, the deepest level.
        contexts: ``paper``: a step earlier than k uses its whole prefix, and shares a group only
            with steps whose whole prefix is equal. ``released``: such a step has no group at k.

    Yields:
        Dense group ids, shape ``(steps,)``; -1 for a step without a group at that level.

    Raises:
        ValueError: `context_length` is negative.
    """
    if context_length < 0:
        raise ValueError(f"context_length must be 0 or more, got {context_length}")
    ids = _pair_ids(steps.task, steps.anchor)
    yield ids
    back = np.arange(len(steps))  # the step k before each step, -1 where the trajectory is shorter
    for _ in range(context_length):
        back = np.where(back == NONE, NONE, steps.previous[back])
        # NONE marks the start of the trajectory, so a whole prefix only matches equally long ones.
        ids = _pair_ids(ids, np.where(back == NONE, NONE, steps.anchor[back]))
        yield np.where(back == NONE, NONE, ids) if contexts == "released" else ids


def history_ids(steps: StepArrays) -> NDArray[np.int64]:
    """Return the Oracle groups: steps of one task whose whole history of anchors is equal.

    These steps have the same time index and the same sequence of states. The paper calls steps
    with a consistent context Oracle steps. If the environment is deterministic and the anchor
    identifies the state, the same future follows from all of them under the same actions.

    Returns:
        Dense group ids, shape ``(steps,)``.
    """
    ids = np.empty(len(steps), np.int64)
    by_time = np.argsort(steps.time, kind="stable")
    last = int(steps.time[by_time[-1]]) if len(steps) else -1
    starts = np.searchsorted(steps.time[by_time], np.arange(last + 2))
    used = 0
    for t in range(last + 1):
        rows = by_time[starts[t] : starts[t + 1]]
        parent = steps.task[rows] if t == 0 else ids[steps.previous[rows]]
        level = _pair_ids(parent, steps.anchor[rows])
        ids[rows] = used + level
        used += int(level.max()) + 1
    return ids


def _pair_ids(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return dense ids of the distinct pairs (a_i, b_i), where b >= -1."""
    if not len(a):
        return np.empty(0, np.int64)
    width = int(b.max()) + 2
    return np.unique(a * width + (b + 1), return_inverse=True)[1].reshape(-1)
