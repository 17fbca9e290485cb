"""Statistics of the groups of a batch, as in the paper's figures and tables."""

from collections.abc import Sequence

import numpy as np

from hgpo_rllib.advantages.baselines import trajectory_level
from hgpo_rllib.advantages.groups import EstimatorSettings, Level, group_advantage, history_ids
from hgpo_rllib.advantages.hierarchy import weighted_mean
from hgpo_rllib.advantages.steps import Floats, Ints, StepArrays

SIZE_BINS = (1, 2, 3, 5, 9, 17, 33)
"""Smallest group size in each bin of `size_distribution`; the last bin is unbounded."""
SIZE_LABELS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33+")
RARELY_SHARED, NEARLY_ALL = 0.1, 0.9
"""Thresholds of `anchor_problem`, far from what useful anchors give (docs/advantages.md)."""


def group_sizes(group: Ints) -> Ints:
    """Return the size of every step's group, shape ``(steps,)``; every step has a group."""
    return np.bincount(group)[group]


def level_sizes(levels: Sequence[Level]) -> Ints:
    """Return the size of every step's group at depths k = 0..K, shape ``(K + 1, steps)``."""
    return np.stack([level.size for level in levels])


def utilization(sizes: Ints) -> Floats:
    """Return the share of steps in non-singleton groups (Table 2), over the last axis."""
    return np.mean(sizes > 1, axis=-1)


def mean_size(sizes: Ints) -> Floats:
    """Return the step mean of non-singleton group sizes, over the last axis; 0 if none."""
    shared = sizes > 1
    return np.sum(sizes * shared, axis=-1) / np.maximum(np.sum(shared, axis=-1), 1)


def size_distribution(sizes: Ints) -> Floats:
    """Return the share of steps by the size of their group (Figures 4 and 9).

    Args:
        sizes: shape ``(levels, steps)``.

    Returns:
        Shape ``(levels, len(SIZE_BINS))``. Rows sum to 1 minus the share of steps without a group.
    """
    bins = np.searchsorted(SIZE_BINS, sizes, side="right") - 1
    counts = [np.bincount(row[row >= 0], minlength=len(SIZE_BINS)) for row in bins]
    return np.array(counts) / max(1, sizes.shape[-1])


def oracle_gaps(
    steps: StepArrays, levels: Sequence[Level], settings: EstimatorSettings
) -> dict[str, float]:
    """Return the mean distance of estimates from the Oracle estimate (Figure 2 a, b).

    This is ``mean |A - A_oracle|`` over the steps in non-singleton Oracle groups, in the units
    that `settings.normalize` gives advantages. NaN if there are no such steps. `levels` is
    `compare_levels` of these steps and settings.

    Returns:
        Distance by estimate: ``trajectory`` (Eq. 1; absent if the steps have no
        trajectory_return), ``step`` (Eq. 2) and ``hgpo``.
    """
    truth, size = group_advantage(history_ids(steps), steps.step_return, settings.normalize)
    shared = size > 1
    mean = weighted_mean((level.weight, level.advantage) for level in levels)
    estimates = {"step": levels[0].advantage, "hgpo": mean}
    if steps.trajectory_return is not None:
        estimates = {"trajectory": trajectory_level(steps, settings)} | estimates
    return {
        name: float(np.abs(values - truth)[shared].mean()) if shared.any() else float("nan")
        for name, values in estimates.items()
    }


def explained_variance(value: Floats, step_return: Floats) -> float:
    """Return the share of the variance of step returns explained by the values.

    1: the values equal the returns up to a constant. 0: no better than a constant. Negative: worse
    than a constant. NaN if the returns do not vary.
    """
    variance = step_return.var()
    return float(1 - (step_return - value).var() / variance) if variance > 0 else float("nan")


def anchor_problem(steps: StepArrays, size: Ints) -> str | None:
    """Return why comparisons by state are of no use in this batch, or None.

    Two problems are found:

    - Anchors are too specific: except for first steps, which share the start of their task, fewer
      than `RARELY_SHARED` of the steps share their state with another. The level-0 groups of first
      steps are then almost the only ones.
    - Anchors are too coarse: on average, a step shares its state with more than `NEARLY_ALL` of all
      steps of its task, so a comparison by state is one with the whole task. This needs episodes of
      more than one step.

    `size` is the size of every step's group at depth 0, shape ``(steps,)``.
    """
    later = steps.time > 0
    if not later.any():
        return None
    shared = float(np.mean(size[later] > 1))
    if shared < RARELY_SHARED:
        return (
            f"only {shared:.1%} of the steps, without first steps, share their state with another, "
            "so there is hardly anything to compare by state: use anchors that are less specific"
        )
    covered = float(np.mean(size / group_sizes(steps.task)))
    if covered > NEARLY_ALL:
        return (
            f"a step shares its state with {covered:.1%} of the steps of its task, so comparisons "
            "by state are those with the whole task: use anchors that are more specific"
        )
    return None


def summary(
    steps: StepArrays,
    advantage: Floats,
    levels: Sequence[Level],
    settings: EstimatorSettings,
) -> dict[str, float]:
    """Return the diagnostics of one batch as flat metrics, named as in docs/metrics.md.

    `levels` is `compare_levels` of these steps and settings.
    """
    sizes = level_sizes(levels)
    alike = group_sizes(history_ids(steps))
    result = {
        "advantage_mean": float(np.mean(advantage)),
        "zero_advantage_fraction": float(np.mean(advantage == 0)),
    }
    for k, (share, size) in enumerate(zip(utilization(sizes), mean_size(sizes), strict=True)):
        result |= {f"level_fraction_k{k}": float(share), f"level_group_size_k{k}": float(size)}
    result |= {
        "oracle_fraction": float(utilization(alike)),
        "oracle_group_size": float(mean_size(alike)),
    }
    gaps = oracle_gaps(steps, levels, settings)
    result |= {f"oracle_gap_{name}": gap for name, gap in gaps.items()}
    if steps.nll is not None and steps.teacher_nll is not None:
        result["teacher_gap"] = float(np.mean(steps.nll - steps.teacher_nll))
    if steps.value is not None:
        result["explained_variance"] = explained_variance(steps.value, steps.step_return)
    return result
