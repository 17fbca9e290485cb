"""Comparison of values with the mean and standard deviation of their group."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.steps import NONE

Normalize = Literal["mean_std", "mean"]
EPSILON = 1e-6  # added to the standard deviation, as in the released code
ROUNDING = 1e-12  # deviations below this share of a group's values count as rounding errors


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
