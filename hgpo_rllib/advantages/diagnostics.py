"""What the groups of a batch are worth: the paper's figures and tables as functions."""

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.baselines import oracle, step_level, trajectory_level
from hgpo_rllib.advantages.contexts import context_levels, history_ids
from hgpo_rllib.advantages.hierarchy import hgpo
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import NONE, StepArrays

SIZE_BINS = (1, 2, 3, 5, 9, 17, 33)
"""Smallest group size of each bin of `size_distribution`; the last bin is open."""
SIZE_LABELS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33+")


def group_sizes(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Size of every step's group, shape ``(steps,)``; 0 for a step without one."""
    sizes = np.zeros(len(group), np.int64)
    inside = group != NONE
    sizes[inside] = np.bincount(group[inside])[group[inside]]
    return sizes


def level_sizes(steps: StepArrays, settings: EstimatorSettings) -> NDArray[np.int64]:
    """`group_sizes` at every depth k = 0..K, shape ``(K + 1, steps)``."""
    levels = context_levels(steps, settings.context_length, settings.contexts)
    return np.stack([group_sizes(group) for group in levels])


def utilisation(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of steps with company in their group (Table 2), over the last axis of `sizes`."""
    return np.mean(sizes > 1, axis=-1)


def mean_size(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean size of the groups of steps with company, over the last axis; 0 without any."""
    shared = sizes > 1
    return np.sum(sizes * shared, axis=-1) / np.maximum(np.sum(shared, axis=-1), 1)


def size_distribution(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of steps by the size of their group (Figures 4 and 9).

    Args:
        sizes: shape ``(levels, steps)``.

    Returns:
        Shape ``(levels, len(SIZE_BINS))``. Rows sum to 1, less the steps without a group.
    """
    bins = np.searchsorted(SIZE_BINS, sizes, side="right") - 1
    counts = [np.bincount(row[row >= 0], minlength=len(SIZE_BINS)) for row in bins]
    return np.array(counts) / max(1, sizes.shape[-1])


def oracle_gaps(steps: StepArrays, settings: EstimatorSettings) -> dict[str, float]:
    """Mean distance of estimates from the Oracle estimate (Figure 2 a, b).

    Over the steps that have company in their Oracle group: ``mean |A - A_oracle|``, in units of
    the advantage as `settings.normalize` makes it. NaN where no step has such company.

    Returns:
        By estimate: ``trajectory`` (Eq. 1; absent where the steps have no trajectory_return),
        ``step`` (Eq. 2) and ``hgpo``.
    """
    shared = group_sizes(history_ids(steps)) > 1
    truth = oracle(steps, settings)
    estimates = {"step": step_level(steps, settings.normalize), "hgpo": hgpo(steps, settings)}
    if steps.trajectory_return is not None:
        estimates = {"trajectory": trajectory_level(steps, settings.normalize)} | estimates
    return {
        name: float(np.abs(values - truth)[shared].mean()) if shared.any() else float("nan")
        for name, values in estimates.items()
    }


def summary(
    steps: StepArrays, advantage: NDArray[np.float64], settings: EstimatorSettings
) -> dict[str, float]:
    """The diagnostics of one batch as flat metrics; names as in docs/algorithm.md."""
    sizes = level_sizes(steps, settings)
    alike = group_sizes(history_ids(steps))
    result = {
        "advantage_mean": float(np.mean(advantage)),
        "zero_advantage_fraction": float(np.mean(advantage == 0)),
    }
    for k, (share, size) in enumerate(zip(utilisation(sizes), mean_size(sizes), strict=True)):
        result |= {f"level_fraction_k{k}": float(share), f"level_group_size_k{k}": float(size)}
    result |= {
        "oracle_fraction": float(utilisation(alike)),
        "oracle_group_size": float(mean_size(alike)),
    }
    gaps = oracle_gaps(steps, settings)
    return result | {f"oracle_gap_{name}": gap for name, gap in gaps.items()}
