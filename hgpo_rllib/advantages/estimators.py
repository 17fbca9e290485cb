"""HGPO advantages: the weighted mean of group advantages over the depths of shared history."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.contexts import Contexts, context_ids
from hgpo_rllib.advantages.steps import StepArrays

Normalize = Literal["mean_std", "mean"]
EPSILON = 1e-6  # added to the standard deviation, as in the released code
ROUNDING = 1e-12  # deviations below this share of a group's values are rounding


@dataclass(frozen=True)
class HGPOEstimate:
    """Advantages of one batch with what is needed to explain them."""

    advantage: NDArray[np.float64]
    """Shape ``(steps,)``."""
    level_advantage: NDArray[np.float64]
    """Advantage inside the group at each depth, shape ``(K + 1, steps)``; 0 where it has none."""
    group_size: NDArray[np.int64]
    """Steps in the group at each depth, shape ``(K + 1, steps)``; 0 where the level is missing."""


def hgpo_advantages(
    steps: StepArrays,
    context_length: int = 2,
    weight_alpha: float = 1.0,
    normalize: Normalize = "mean_std",
    contexts: Contexts = "paper",
) -> HGPOEstimate:
    """Hierarchy-of-Groups advantages (arXiv 2602.22817, Eq. 3-7).

    At every depth k = 0..K the steps that share their task, state and k states of history form a
    group. A step's advantage in its group is ``(R - mean) / (std + 1e-6)`` (population standard
    deviation; without the division for ``normalize="mean"``). Its advantage is the mean over
    depths with weights proportional to ``(k + 1)^alpha``. Groups of one and advantages that are
    exactly zero are left out before the weights are normalised; a group whose returns are all
    equal gives exactly 0.

    Args:
        steps: the batch.
        context_length: K, the deepest level.
        weight_alpha: how strongly deeper levels (less biased, smaller groups) are preferred.
        normalize: ``mean_std`` or ``mean``.
        contexts: ``paper`` as above; ``released`` follows the authors' code: a step has a level
            only with k predecessors, and the raw weight is ``(k + 2)^alpha``.

    Raises:
        ValueError: for a negative ``context_length``.
    """
    if context_length < 0:
        raise ValueError(f"context_length must be 0 or more, got {context_length}")
    ids = context_ids(steps, context_length, contexts)
    offset = 1 if contexts == "paper" else 2
    level_advantage = np.zeros(ids.shape)
    group_size = np.zeros(ids.shape, np.int64)
    for k, level in enumerate(ids):
        has_group = level >= 0
        level_advantage[k, has_group], group_size[k, has_group] = group_advantage(
            level[has_group], steps.step_return[has_group], normalize
        )
    weight = (np.arange(len(ids)) + offset)[:, None] ** float(weight_alpha)
    weight = np.where(level_advantage != 0, weight, 0.0)
    total = weight.sum(axis=0)
    advantage = (weight * level_advantage).sum(axis=0) / np.where(total > 0, total, 1.0)
    return HGPOEstimate(advantage, level_advantage, group_size)


def group_advantage(
    group: NDArray[np.int64], value: NDArray[np.float64], normalize: Normalize
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Advantage of each value in its group, and the size of that group.

    Groups of one and groups of equal values give exactly 0: rounding in the mean would otherwise
    leave noise that the division by a standard deviation of almost 0 blows up.

    Args:
        group: dense group ids, shape ``(n,)``.
        value: shape ``(n,)``.
    """
    if not len(group):
        return np.empty(0), np.empty(0, np.int64)
    size = np.bincount(group)
    deviation = value - (np.bincount(group, value) / np.maximum(size, 1))[group]
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    # A value equal to its group's mean leaves rounding noise that depends on the order of rows.
    scale = np.maximum(np.abs(low), np.abs(high))[group]
    deviation = np.where(np.abs(deviation) <= ROUNDING * scale, 0.0, deviation)
    if normalize == "mean_std":
        variance = np.bincount(group, deviation**2) / np.maximum(size, 1)
        deviation = deviation / (np.sqrt(variance)[group] + EPSILON)
    return np.where((high > low)[group], deviation, 0.0), size[group]
