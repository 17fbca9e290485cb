"""Groups of steps by shared history, and comparison of steps within them (Eq. 3 to 5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.steps import NONE, StepArrays, intern_pairs

Contexts = Literal["paper", "released"]
Normalize = Literal["mean_std", "mean"]
EPSILON = 1e-6  # added to the standard deviation, as in the released code
ROUNDING = 1e-12  # deviations below this share of a group's values count as rounding errors


@dataclass(frozen=True)
class EstimatorSettings:
    """Settings of all estimators; the docstring of each lists the fields that it reads."""

    context_length: int = 2
    """K, the deepest level of shared history."""
    weight_alpha: float = 1.0
    """α: level k has weight (k + 1)^α."""
    normalize: Normalize = "mean_std"
    """Divide by the group's standard deviation, or only subtract its mean."""
    contexts: Contexts = "paper"
    """Groups of early steps, see `context_levels`; `released` also uses weights (k + 2)^α."""
    step_weight: float = 1.0
    """ω, the weight of GiGPO's step-level part."""
    gamma: float = 0.95
    """Discount of the step returns, used again in PPO's temporal differences."""
    gae_lambda: float = 0.95
    """λ of PPO's generalised advantage estimation."""
    distance_discount: float = 0.1
    """GraphGPO's discount for each step of the distance to success."""


@dataclass(frozen=True)
class Level:
    """Groups of a batch's steps at one depth; arrays have shape ``(steps,)``."""

    group: NDArray[np.int64]
    """Dense group ids; -1 for a step without a group at this depth."""
    size: NDArray[np.int64]
    """Size of each step's group; 0 for a step without a group."""
    advantage: NDArray[np.float64]
    """Advantage of each step in its group (Eq. 5); 0 for a step without a group."""


def compare_levels(steps: StepArrays, settings: EstimatorSettings) -> Iterator[Level]:
    """Yield the levels k = 0, 1, …, K one at a time, so that only one has to be in memory.

    Reads context_length, normalize, contexts.
    """
    for group in context_levels(steps, settings.context_length, settings.contexts):
        advantage, size = group_advantage(group, steps.step_return, settings.normalize)
        yield Level(group, size, advantage)


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
    ids = intern_pairs(steps.task, steps.anchor)
    yield ids
    back = np.arange(len(steps))  # the step k before each step, -1 where the trajectory is shorter
    for _ in range(context_length):
        back = np.where(back == NONE, NONE, steps.previous[back])
        # NONE marks the start of the trajectory, so a whole prefix only matches equally long ones.
        ids = intern_pairs(ids, np.where(back == NONE, NONE, steps.anchor[back]))
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
        level = intern_pairs(parent, steps.anchor[rows])
        ids[rows] = used + level
        used += int(level.max()) + 1
    return ids


def group_advantage(
    group: NDArray[np.int64], value: NDArray[np.float64], normalize: Normalize
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the advantage of each value in its group (Eq. 5), and the size of that group.

    The advantage is ``(value - mean) / (std + 1e-6)`` with the population standard deviation;
    ``normalize="mean"`` skips the division. Singletons and groups of equal values give exactly 0.
    Otherwise, rounding errors in the mean would be divided by a standard deviation of almost 0
    (advantages of up to 0.66 in float32).

    Args:
        group: dense group ids, shape ``(n,)``; -1 for a value without a group.
        value: shape ``(n,)``.
        normalize: ``mean_std`` or ``mean``.

    Returns:
        Advantages and sizes, both of shape ``(n,)``; 0 for a value without a group.
    """
    if not len(group):
        return np.zeros(0), np.zeros(0, np.int64)
    if group.min() == NONE:
        inside = group != NONE
        advantage, size = np.zeros(len(group)), np.zeros(len(group), np.int64)
        advantage[inside], size[inside] = group_advantage(group[inside], value[inside], normalize)
        return advantage, size
    count = np.bincount(group)
    deviation = value - (group_sum(group, value) / np.maximum(count, 1))[group]
    low, high = group_range(group, value)
    # A value equal to its group's mean can differ from it by rounding, depending on row order.
    scale = np.maximum(np.abs(low), np.abs(high))[group]
    deviation[np.abs(deviation) <= ROUNDING * scale] = 0.0
    if normalize == "mean_std":
        variance = group_sum(group, deviation**2) / np.maximum(count, 1)
        deviation /= (np.sqrt(variance) + EPSILON)[group]
    deviation[(high == low)[group]] = 0.0
    return deviation, count[group]


def group_sum(group: NDArray[np.int64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the values of each group, shape ``(groups,)``."""
    return np.bincount(group, value).astype(np.float64, copy=False)


def group_range(
    group: NDArray[np.int64], value: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and largest value of each group, both of shape ``(groups,)``."""
    low, high = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return low, high
