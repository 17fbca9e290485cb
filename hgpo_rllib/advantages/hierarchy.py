"""HGPO and its variants: combine the group advantages at all depths of shared history."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.baselines import (
    Floats,
    Levels,
    gae,
    step_level,
    trajectory_level,
)
from hgpo_rllib.advantages.groups import (
    EPSILON,
    EstimatorSettings,
    compare_levels,
    context_levels,
    group_advantage,
    group_sum,
)
from hgpo_rllib.advantages.steps import NONE, StepArrays


def hgpo(steps: StepArrays, settings: EstimatorSettings, levels: Levels = None) -> Floats:
    """HGPO (Eq. 3-7): weighted mean of group advantages over depths of shared history.

    At depth k = 0..K, the steps that share their task, state and k previous states form a group
    (Eq. 3, 4). The advantage of a step in it is ``A_k = (R - mean) / (std + 1e-6)`` (Eq. 5). The
    mean over depths has weights proportional to ``(k + 1)^α`` (Eq. 6, 7). Singletons and advantages
    of exactly 0 are excluded before the weights are normalised. A group whose returns are all equal
    gives exactly 0.

    Reads context_length, weight_alpha, normalize, contexts.
    """
    return weighted_mean(len(steps), weighted_levels(steps, settings, levels))


def hgpo_no_hierarchy(
    steps: StepArrays, settings: EstimatorSettings, levels: Levels = None
) -> Floats:
    """Ablation "without G_1:K" (Table 5): level 0 only, the step-level estimate of Eq. 2.

    Reads normalize.
    """
    return step_level(steps, settings, levels)


def hgpo_uniform(steps: StepArrays, settings: EstimatorSettings, levels: Levels = None) -> Floats:
    """Ablation "without adaptive weights" (Table 5): HGPO with equal weights at all depths.

    Reads context_length, normalize, contexts.
    """
    equal = ((1.0, advantage) for _, advantage in weighted_levels(steps, settings, levels))
    return weighted_mean(len(steps), equal)


def hgpo_base_group(
    steps: StepArrays, settings: EstimatorSettings, levels: Levels = None
) -> Floats:
    """Ablation with Eq. 1 as one more, coarsest level (Table 5; `base_group` in the released code).

    The trajectory-level advantage of Eq. 1 joins the levels of HGPO with raw weight 1.
    Reads context_length, weight_alpha, normalize, contexts; needs trajectory_return.
    """
    base = trajectory_level(steps, settings.normalize)
    return weighted_mean(len(steps), [(1.0, base), *weighted_levels(steps, settings, levels)])


def hgpo_leave_one_out(
    steps: StepArrays, settings: EstimatorSettings, levels: Levels = None
) -> Floats:
    """HGPO with leave-one-out baselines (beyond the paper).

    The mean of a group of n includes the step itself, so ``R - mean`` is only ``(n-1)/n`` of the
    difference from the mean of the other steps. Small (deep) groups are therefore shrunk towards 0,
    and the baseline depends on the action that it evaluates. Every level is multiplied by
    ``n / (n - 1)``, which gives exactly ``R - mean of the others`` (with `mean_std`, divided by the
    standard deviation of the whole group).

    Reads context_length, weight_alpha, normalize, contexts.
    """
    others = weighted_levels(steps, settings, levels, leave_one_out=True)
    return weighted_mean(len(steps), others)


def hgpo_uncertainty(
    steps: StepArrays, settings: EstimatorSettings, levels: Levels = None
) -> Floats:
    """HGPO with weights computed from group sizes and variances (beyond the paper).

    Each level is shrunk towards the next coarser level, and less so the more precise its own
    estimate is. docs/advantages.md has the derivation.

    Reads context_length, normalize, contexts.
    """
    if levels is None:
        groups = context_levels(steps, settings.context_length, settings.contexts)
    else:
        groups = (level.group for level in levels)
    parent = next(groups)
    advantage = _others_level(parent, steps.step_return)
    scale = _group_std(parent, steps.step_return) if settings.normalize == "mean_std" else None
    for group in groups:
        shrinkage = _shrinkage(parent, group, steps.step_return)
        own = _others_level(group, steps.step_return)
        advantage = (1 - shrinkage) * own + shrinkage * advantage
        parent = group
    return advantage if scale is None else advantage / (scale + EPSILON)


def hgpo_gae(steps: StepArrays, settings: EstimatorSettings, levels: Levels = None) -> Floats:
    """HGPO's groups as a value function for generalised advantages (beyond the paper).

    The value of a step is the weighted mean over depths k of the mean step return of its group,
    with weights proportional to ``(k + 1)^α`` and without singletons; the step return where all
    groups are singletons. The result of `gae` is compared over all steps of the task. With λ = 1,
    a step is credited with its own return, as in HGPO. With a smaller λ, it is credited with the
    values of the states that follow, which other trajectories have visited too: less variance, and
    bias where the deepest groups still mix different states.

    Reads context_length, weight_alpha, normalize, contexts, gamma, gae_lambda.
    """
    value = history_value(steps, settings, levels)
    advantage = gae(steps, value, settings.gamma, settings.gae_lambda)
    return group_advantage(steps.task, advantage, settings.normalize)[0]


def history_value(steps: StepArrays, settings: EstimatorSettings, levels: Levels = None) -> Floats:
    """Return the value of each step that `hgpo_gae` uses, shape ``(steps,)``."""
    offset = 1 if settings.contexts == "paper" else 2
    numerator, denominator = np.zeros(len(steps)), np.zeros(len(steps))
    for k, level in enumerate(compare_levels(steps, settings) if levels is None else levels):
        shared = np.flatnonzero(level.size > 1)
        group = level.group[shared]
        total = group_sum(group, steps.step_return[shared])[group] if len(shared) else 0.0
        weight = float(k + offset) ** settings.weight_alpha
        numerator[shared] += weight * total / level.size[shared]
        denominator[shared] += weight
    value = steps.step_return.copy()
    return np.divide(numerator, denominator, out=value, where=denominator > 0)


def weighted_mean(steps: int, levels: Iterable[tuple[float, Floats]]) -> Floats:
    """Compute Eq. 6 and 7: the weighted mean over levels of each step's non-zero advantages.

    Args:
        steps: number of steps.
        levels: raw weight and advantages, shape ``(steps,)``, of each level.

    Returns:
        Shape ``(steps,)``; 0 for a step whose advantages are 0 at all levels.
    """
    numerator, denominator = np.zeros(steps), np.zeros(steps)
    for weight, advantage in levels:
        numerator += weight * advantage
        denominator += weight * (advantage != 0)
    return np.divide(numerator, denominator, out=numerator, where=denominator > 0)


def weighted_levels(
    steps: StepArrays,
    settings: EstimatorSettings,
    levels: Levels = None,
    leave_one_out: bool = False,
) -> Iterator[tuple[float, Floats]]:
    """Yield the raw weight of each level (Eq. 6) and the advantages of all steps at it."""
    offset = 1 if settings.contexts == "paper" else 2
    for k, level in enumerate(compare_levels(steps, settings) if levels is None else levels):
        advantage = level.advantage
        if leave_one_out:
            advantage = advantage * (level.size / np.maximum(level.size - 1, 1))
        yield float(k + offset) ** settings.weight_alpha, advantage


def _others_level(group: NDArray[np.int64], value: Floats) -> Floats:
    """Return each value minus the mean of the others in its group; 0 for singletons."""
    advantage, size = group_advantage(group, value, "mean")
    return advantage * (size / np.maximum(size - 1, 1))


def _group_std(group: NDArray[np.int64], value: Floats) -> Floats:
    if not len(group):
        return np.empty(0)
    deviation, _ = group_advantage(group, value, "mean")
    return np.sqrt(group_sum(group, deviation**2) / np.bincount(group))[group]


def _shrinkage(
    parent: NDArray[np.int64], group: NDArray[np.int64], value: Floats
) -> NDArray[np.float64]:
    """Return B of `hgpo_uncertainty` for every step; 1 for singletons and without a group."""
    shrinkage = np.ones(len(group))
    inside = np.flatnonzero(group != NONE)
    if not len(inside):
        return shrinkage
    p, c, x = parent[inside], group[inside], value[inside]
    own, size = group_advantage(c, x, "mean")  # R_i - mean_c
    whole, totals = group_advantage(p, x, "mean")  # R_i - mean_p
    groups = group_sum(p, 1 / size)  # g: the n_c steps of a group add 1 / n_c each
    steps = group_sum(p, np.ones(len(p)))  # n
    within = _ratio(group_sum(p, own**2), steps - groups)
    between = _ratio(group_sum(p, (whole - own) ** 2), groups - 1)
    scale = _ratio(steps - group_sum(p, size / totals), groups - 1)  # n_0, by Σ n_c² = Σ_i n_c(i)
    spread = np.maximum(0.0, _ratio(between - within, scale))[p]
    noise = within[p] / np.maximum(size - 1, 1)
    usable = (size > 1) & (spread > 0)
    shrinkage[inside[usable]] = noise[usable] / (noise[usable] + spread[usable])
    return shrinkage


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the elementwise quotient; 0 if the denominator is (nearly) 0: no data."""
    known = denominator > 1e-9
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=known)
