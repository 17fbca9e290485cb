"""Context ids: which steps share their state and the k states before it (Eq. 3 of the paper)."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.steps import StepArrays

Contexts = Literal["paper", "released"]


def context_ids(
    steps: StepArrays, context_length: int, contexts: Contexts = "paper"
) -> NDArray[np.int64]:
    """Group of every step at every depth k = 0..K of shared history.

    Two steps are in one group at depth k when they belong to one task and their last k+1 anchors
    (the k before it and its own) are equal. Depths build on each other, so a depth costs one sort
    of integer pairs instead of a comparison of histories.

    Args:
        steps: the batch.
        context_length: K, the deepest level.
        contexts: ``paper``: a step earlier than k uses its whole prefix (and shares it only with
            steps whose whole prefix is equal); ``released``: such a step has no group at level k.

    Returns:
        Shape ``(K + 1, steps)``; -1 where a step has no group at that level.
    """
    n = len(steps)
    previous = _previous_step(steps)
    ids = np.empty((context_length + 1, n), np.int64)
    ids[0] = _pair_ids(steps.task, steps.anchor)
    back = np.arange(n)  # the step k before each step, -1 where the trajectory begins later
    for k in range(1, context_length + 1):
        back = np.where(back >= 0, previous[back], -1)
        # -1 marks "history ended before": whole prefixes meet only prefixes of the same length.
        earlier = np.where(back >= 0, steps.anchor[back], -1)
        ids[k] = _pair_ids(ids[k - 1], earlier)
        if contexts == "released":
            ids[k, back < 0] = -1
    return ids


def _previous_step(steps: StepArrays) -> NDArray[np.int64]:
    """Row of the step before each step in its trajectory, -1 for first steps."""
    previous = np.full(len(steps), -1, np.int64)
    order = steps.time_order()
    same = np.flatnonzero(np.diff(steps.trajectory[order]) == 0)
    previous[order[same + 1]] = order[same]
    return previous


def _pair_ids(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the distinct pairs (a_i, b_i), b >= -1, by dense ids."""
    if not len(a):
        return np.empty(0, np.int64)
    width = int(b.max()) + 2
    return np.unique(a * width + (b + 1), return_inverse=True)[1].reshape(-1)
