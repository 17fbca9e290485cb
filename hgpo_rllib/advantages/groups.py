"""Groups of steps by shared history, and comparison of steps within them (Eq. 3 to 6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hgpo_rllib.advantages.steps import NONE, Floats, Ints, StepArrays, intern_pairs

Contexts = Literal["paper", "released"]
Normalize = Literal["mean_std", "mean"]
EPSILON = 1e-6  # added to the standard deviation, as in the released code
ROUNDING = 1e-12  # deviations below this share of a group's values count as rounding errors


@dataclass(frozen=True)
class EstimatorSettings:
    """Settings of all estimators; the docstring of each lists the fields that it reads.

    They are fields of the section `algorithm` of a run file and described in `AlgorithmSettings`.
    """

    context_length: int = 2
    weight_alpha: float = 1.0
    normalize: Normalize = "mean_std"
    contexts: Contexts = "paper"
    step_weight: float = 1.0
    gamma: float = 0.95
    gae_lambda: float = 0.95
    segment_lambda: float = 0.95
    token_weight: float = 1.0
    strategy_share: float = 0.5
    distance_discount: float = 0.1
    hindsight_smoothing: float = 0.0


@dataclass(frozen=True)
class Level:
    """Comparison of a batch's steps at one depth; arrays have shape ``(steps,)``."""

    group: Ints
    """Group ids; -1 for a step without a group at this depth."""
    advantage: Floats
    """Advantage of each step in its group (Eq. 5); 0 for a step without a group."""
    size: Ints
    """Size of each step's group; 0 for a step without a group."""
    weight: float
    """Raw weight of the depth (Eq. 6), or ``(k + 2)^α`` with ``contexts="released"``."""


def compare_levels(steps: StepArrays, settings: EstimatorSettings) -> Iterator[Level]:
    """Yield the levels k = 0, 1, …, K one at a time, so that only one has to be in memory.

    Reads context_length, weight_alpha, normalize, contexts.
    """
    first = 1 if settings.contexts == "paper" else 2
    groups = context_levels(steps, settings.context_length, settings.contexts)
    for k, group in enumerate(groups):
        advantage, size = group_advantage(group, steps.step_return, settings.normalize)
        yield Level(group, advantage, size, weight=float(k + first) ** settings.weight_alpha)


def context_levels(
    steps: StepArrays, context_length: int, contexts: Contexts = "paper"
) -> Iterator[Ints]:
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
        Group ids, shape ``(steps,)``; -1 for a step without a group at that level.

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


def history_ids(steps: StepArrays) -> Ints:
    """Return the Oracle groups: steps of one task whose whole history of anchors is equal.

    These steps have the same time index and the same sequence of states. The paper calls steps
    with a consistent context Oracle steps. If the environment is deterministic and the anchor
    identifies the state, the same future follows from all of them under the same actions.

    Returns:
        Group ids, shape ``(steps,)``.
    """
    ids = np.empty(len(steps), np.int64)
    used = 0
    for t, rows in enumerate(steps.by_time):
        parent = steps.task[rows] if t == 0 else ids[steps.previous[rows]]
        ids[rows] = used + intern_pairs(parent, steps.anchor[rows])
        used = ids[rows].max(initial=NONE) + 1
    return ids


def group_advantage(group: Ints, value: Floats, normalize: Normalize) -> tuple[Floats, Ints]:
    """Return the advantage of each value in its group (Eq. 5), and the size of that group.

    The advantage is ``(value - mean) / (std + 1e-6)`` with the population standard deviation;
    ``normalize="mean"`` skips the division. Singletons and groups of equal values give exactly 0.
    Otherwise, rounding errors in the mean would be divided by a standard deviation of almost 0.

    Args:
        group: group ids, shape ``(n,)``; -1 for a value without a group.
        value: shape ``(n,)``.
        normalize: ``mean_std`` or ``mean``.

    Returns:
        Advantages and sizes, both of shape ``(n,)``; 0 for a value without a group.
    """
    if NONE in group:
        inside = group != NONE
        advantage, size = np.zeros(len(group)), np.zeros(len(group), np.int64)
        advantage[inside], size[inside] = group_advantage(group[inside], value[inside], normalize)
        return advantage, size
    count = np.bincount(group)
    low, high = np.full(len(count), np.inf), np.full(len(count), -np.inf)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    deviation = value - group_mean(group, value)
    # A value equal to its group's mean can differ from it by rounding, depending on row order.
    scale = np.maximum(-low, high)[group]  # the largest absolute value
    deviation[np.abs(deviation) <= ROUNDING * scale] = 0.0
    if normalize == "mean_std":
        deviation /= np.sqrt(group_mean(group, deviation**2)) + EPSILON
    deviation[(high == low)[group]] = 0.0
    return deviation, count[group]


def leave_one_out(advantage: Floats, size: Ints) -> Floats:
    """Convert ``R - mean`` in groups of these sizes to ``R - mean of the others``; 0 if alone."""
    return advantage * (size / np.maximum(size - 1, 1))


def group_mean(group: Ints, value: Floats) -> Floats:
    """Return the mean of each value's group, shape ``(n,)``."""
    return (group_sum(group, value) / np.maximum(np.bincount(group), 1))[group]


def group_sum(group: Ints, value: Floats) -> Floats:
    """Return the sum of the values of each group, shape ``(groups,)``."""
    return np.bincount(group, value).astype(np.float64, copy=False)
