"""HGPO and its variants: combine the group advantages at all depths of shared history."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hgpo_rllib.advantages.baselines import gae, over_batch, trajectory_level
from hgpo_rllib.advantages.groups import (
    EPSILON,
    EstimatorSettings,
    compare_levels,
    context_levels,
    group_advantage,
    group_mean,
    group_sum,
    leave_one_out,
)
from hgpo_rllib.advantages.steps import NONE, Floats, Ints, StepArrays, intern_pairs

PRIOR_STEPS = 2.0
"""Steps that the value of a shorter history counts for in `hgpo_shrinkage`."""


def hgpo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """HGPO (Eq. 3-7): weighted mean of group advantages over depths of shared history.

    At depth k = 0..K, the steps that share their task, state and k previous states form a group
    (Eq. 3, 4). The advantage of a step in it is ``A_k = (R - mean) / (std + 1e-6)`` (Eq. 5). The
    mean over depths has weights proportional to ``(k + 1)^α`` (Eq. 6, 7), or ``(k + 2)^α`` with
    ``contexts="released"``. Singletons and advantages of exactly 0 are excluded before the weights
    are normalized. A group whose returns are all equal gives exactly 0.

    Reads context_length, weight_alpha, normalize, contexts.
    """
    levels = compare_levels(steps, settings)
    return weighted_mean((level.weight, level.advantage) for level in levels)


def hgpo_uniform(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Ablation "without adaptive weights" (Table 5): HGPO with equal weights at all depths, α = 0.

    Reads context_length, normalize, contexts.
    """
    return hgpo(steps, replace(settings, weight_alpha=0.0))


def hgpo_base_group(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Ablation with Eq. 1 as one more, coarsest level (Table 5; `base_group` in the released code).

    The trajectory-level advantage of Eq. 1 joins the levels of HGPO with raw weight 1.
    Reads context_length, weight_alpha, normalize, contexts; needs trajectory_return.
    """
    base = trajectory_level(steps, settings)
    levels = compare_levels(steps, settings)
    return weighted_mean([(1.0, base), *((level.weight, level.advantage) for level in levels)])


def hgpo_leave_one_out(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """HGPO with leave-one-out baselines (beyond the paper).

    The mean of a group of n includes the step itself, so ``R - mean`` is only ``(n-1)/n`` of the
    difference from the mean of the other steps. Small (deep) groups are therefore shrunk towards 0,
    and the baseline depends on the action that it evaluates. Every level is multiplied by
    ``n / (n - 1)``, which gives exactly ``R - mean of the others`` (with `mean_std`, divided by the
    standard deviation of the whole group).

    Reads context_length, weight_alpha, normalize, contexts.
    """
    levels = compare_levels(steps, settings)
    return weighted_mean(
        (level.weight, leave_one_out(level.advantage, level.size)) for level in levels
    )


def hgpo_uncertainty(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """HGPO with weights computed from group sizes and variances (beyond the paper).

    Each level is shrunk towards the next coarser level, and less so the more precise its own
    estimate is. docs/advantages.md has the derivation.

    Reads context_length, normalize, contexts.
    """
    value = steps.step_return
    groups = context_levels(steps, settings.context_length, settings.contexts)
    parent = next(groups)
    centered, size = group_advantage(parent, value, "mean")
    scale = np.sqrt(group_mean(parent, centered**2)) + EPSILON
    advantage = leave_one_out(centered, size)
    for group in groups:
        own = leave_one_out(*group_advantage(group, value, "mean"))
        shrinkage = _shrinkage(parent, group, value)
        advantage = (1 - shrinkage) * own + shrinkage * advantage
        parent = group
    return advantage / scale if settings.normalize == "mean_std" else advantage


def hgpo_gae(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """HGPO's groups as a value function for generalized advantages (beyond the paper).

    The value of a step is the weighted mean over depths k of the mean step return of its group,
    with the weights of `hgpo` and without singletons; the step return where all groups are
    singletons. The result of `gae` is compared over all steps of the task. With λ = 1, a step is
    credited with its own return, as in HGPO. With a smaller λ, it is credited with the values of
    the states that follow, which other trajectories have visited too: less variance, and bias where
    the deepest groups still mix different states.

    Reads context_length, weight_alpha, normalize, contexts, gamma, gae_lambda.
    """
    numerator, denominator = np.zeros(len(steps)), np.zeros(len(steps))
    for level in compare_levels(steps, settings):
        shared = level.size > 1
        mean = group_mean(level.group[shared], steps.step_return[shared])
        numerator[shared] += level.weight * mean
        denominator[shared] += level.weight
    value = steps.step_return.copy()
    np.divide(numerator, denominator, out=value, where=denominator > 0)
    advantage = gae(steps, value, settings.gamma, settings.gae_lambda)
    return group_advantage(steps.task, advantage, settings.normalize)[0]


def hgpo_shrinkage(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Generalized advantages with values of histories from the other trajectories of the task.

    Beyond the paper. The value at depth k is the mean step return of the step's group, without
    the steps of its own trajectory, shrunk towards the value at depth k - 1:
    ``V_k = (sum R + 2 V_{k-1}) / (n + 2)``, with the sum over n steps of other trajectories. V_{-1}
    is the mean step return of the whole batch. The advantage is `gae` with V_K, normalized over
    the batch. Use it with a small λ, 0.4 (docs/advantages.md).

    Reads context_length, normalize, gamma, gae_lambda.
    """
    returns = steps.step_return
    value = group_mean(np.zeros(len(steps), np.int64), returns)
    for group in context_levels(steps, settings.context_length):
        own = intern_pairs(group, steps.trajectory)
        total = group_sum(group, returns)[group] - group_sum(own, returns)[own]
        count = np.bincount(group)[group] - np.bincount(own)[own]
        value = (total + PRIOR_STEPS * value) / (count + PRIOR_STEPS)
    advantage = gae(steps, value, settings.gamma, settings.gae_lambda)
    return over_batch(advantage, settings.normalize)


def weighted_mean(levels: Iterable[tuple[float, Floats]]) -> Floats:
    """Compute Eq. 6 and 7: the weighted mean over levels of each step's non-zero advantages.

    Args:
        levels: raw weight and advantages, shape ``(steps,)``, of each level.

    Returns:
        Shape ``(steps,)``; 0 for a step whose advantages are 0 at all levels.
    """
    numerator, denominator = np.zeros(()), np.zeros(())
    for weight, advantage in levels:
        numerator = numerator + weight * advantage
        denominator = denominator + weight * (advantage != 0)
    return np.divide(numerator, denominator, out=numerator, where=denominator > 0)


def _shrinkage(parent: Ints, group: Ints, value: Floats) -> Floats:
    """Return B of `hgpo_uncertainty` for every step; 1 for singletons and without a group."""
    shrinkage = np.ones(len(group))
    inside = np.flatnonzero(group != NONE)
    p, c, x = parent[inside], group[inside], value[inside]
    own, size = group_advantage(c, x, "mean")  # R_i - mean_c
    whole, totals = group_advantage(p, x, "mean")  # R_i - mean_p
    groups = group_sum(p, 1 / size)  # g: the n_c steps of a group add 1 / n_c each
    steps = group_sum(p, np.ones(len(p)))  # n
    within = _ratio(group_sum(p, own**2), steps - groups)
    between = _ratio(group_sum(p, (whole - own) ** 2), groups - 1)
    scale = _ratio(steps - group_sum(p, size / totals), groups - 1)  # n_0, by Σ n_c² = Σ_i n_c(i)
    spread = _ratio(between - within, scale)[p]
    usable = (size > 1) & (spread > 0)
    noise = within[p][usable] / (size[usable] - 1)
    shrinkage[inside[usable]] = noise / (noise + spread[usable])
    return shrinkage


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the elementwise quotient; 0 if the denominator is (nearly) 0: no data."""
    known = denominator > 1e-9
    return np.divide(numerator, denominator, out=np.zeros(len(numerator)), where=known)
