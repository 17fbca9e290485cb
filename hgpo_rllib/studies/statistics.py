"""Estimates from several training seeds and many held-out tasks.

Scores are a list of arrays of shape ``(seeds, tasks)``, one per split; the estimated number is the
mean over all tasks. Every seed is evaluated on every task, so neither seeds nor tasks are
independent observations: both are sampled, and both contribute to the error.

- Means and differences of means have t intervals from the two-way random effects model (seeds x
  tasks): the variance components are those of the analysis of variance, the degrees of freedom
  those of Satterthwaite (1946). They hold for few seeds.
- Other statistics have percentile bootstrap intervals that resample seeds and tasks independently
  (Owen 2007, The pigeonhole bootstrap), tasks within their split. Percentile intervals are too
  narrow for few seeds, so the percentiles are expanded (Hesterberg 2015): to those at which the
  bootstrap interval of the mean, or of the difference of two arms, is as wide as its t interval.
- Interquartile mean, probability of improvement and performance profile are those of rliable
  (Agarwal et al. 2021), with the held-out success of a run as its score.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, stats

from hgpo_rllib.advantages.steps import Floats

LEVEL = 0.05
"""Intervals are at 1 - LEVEL; claims are judged at LEVEL."""
RESAMPLES = 10_000
SEED = 0
POWER = 0.8
MAX_SEEDS = 1000
_ROUNDING_ERROR = 1e-18  # smaller variances count as 0
_DIGITS = 12  # of scores of runs, so that equal scores are equal on every machine

Scores = Sequence[Floats]
"""Per split, shape ``(seeds, tasks)``. All tasks have the same weight."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval at 1 - `LEVEL`; unknown bounds are NaN."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Estimate(Interval):
    """A mean over seeds and tasks, or a difference of such means."""

    p_value: float = math.nan
    """Two-sided, of the hypothesis that the true mean is 0."""
    seeds: int = 0
    seed_variance: float = math.nan
    """Variance of the score of a run over seeds, on these tasks."""
    task_variance: float = math.nan
    """Part of the variance of the mean that more seeds do not reduce."""


def run_scores(scores: Scores) -> Floats:
    """Return the score of each run, the mean over all tasks, shape ``(seeds,)``."""
    return np.concatenate(scores, axis=1).mean(axis=1).round(_DIGITS)


def estimate(*arms: Scores) -> Estimate:
    """Estimate the mean over seeds and tasks, or the difference of the means of two arms.

    The two arms share their tasks but not their seeds. The variance is the sum of the parts of
    seeds and of tasks, less the noise of single cells, which is in both; it is at least the larger
    of the two parts. With one seed or one task, and without any variation, the interval is unknown.
    """
    runs = [run_scores(arm) for arm in arms]
    seeds, value = len(runs[0]), float(runs[0].mean() - sum(run.mean() for run in runs[1:]))
    if any(min(split.shape) < 2 for arm in arms for split in arm):
        return Estimate(value, seeds=seeds)
    between_seeds = between_tasks = noise = squares = 0.0
    for run in runs:
        part = float(run.var(ddof=1)) / len(run)
        between_seeds += part
        squares += part**2 / (len(run) - 1)
    all_tasks = sum(split.shape[1] for split in arms[0])
    for splits in zip(*arms, strict=True):
        tasks = splits[0].shape[1]
        weight = (tasks / all_tasks) ** 2
        means = [split.mean(axis=0) for split in splits]
        part = weight * float((means[0] - sum(means[1:])).var(ddof=1)) / tasks
        between_tasks += part
        squares += part**2 / (tasks - 1)
        for split, mean in zip(splits, means, strict=True):
            rest = split - mean - split.mean(axis=1, keepdims=True) + split.mean()
            free = (len(split) - 1) * (tasks - 1)
            part = weight * float((rest**2).sum()) / free / split.size
            noise += part
            squares += part**2 / free
    total = max(between_seeds + between_tasks - noise, between_seeds, between_tasks)
    if total < _ROUNDING_ERROR:
        return Estimate(value, seeds=seeds, seed_variance=0.0, task_variance=0.0)
    error, df = math.sqrt(total), total**2 / squares
    margin = float(stats.t.ppf(1 - LEVEL / 2, df)) * error
    p_value = float(2 * stats.t.sf(abs(value) / error, df))
    of_tasks = max(between_tasks - noise, 0.0)
    low, high = value - margin, value + margin
    return Estimate(value, low, high, p_value, seeds, between_seeds * seeds, of_tasks)


def bootstrap(statistic: Callable[..., Any], *arms: Scores, resamples: int = RESAMPLES) -> Interval:
    """Return the value of a statistic of the runs of one or two arms, and its bootstrap interval.

    Every resample draws the tasks once for all arms, and the seeds of each arm. If the resamples do
    not differ, the interval is unknown.

    Args:
        statistic: function of run scores, one array of shape ``(..., seeds)`` per arm, to shape
            ``(...)``, for example `interquartile_mean`.
        arms: scores of each arm, on the same tasks.
        resamples: number of resamples; their seed is `SEED`.
    """
    value, mean = float(statistic(*map(run_scores, arms))), estimate(*arms)
    if math.isnan(mean.low):
        return Interval(value)
    rng = np.random.default_rng(SEED)
    tasks = sum(split.shape[1] for split in arms[0])
    weights = [_counts(rng, resamples, split.shape[1]) / tasks for split in arms[0]]
    drawn = []
    for arm in arms:
        scores = np.sum([w @ split.T for w, split in zip(weights, arm, strict=True)], axis=0)
        seeds = rng.integers(0, scores.shape[1], scores.shape)
        drawn.append(np.take_along_axis(scores, seeds, axis=1).round(_DIGITS))
    means = [scores.mean(axis=1) for scores in drawn]
    error = float((means[0] - sum(means[1:])).std())
    if error**2 < _ROUNDING_ERROR:
        return Interval(value)
    tail = float(stats.norm.sf((mean.high - mean.value) / error))
    low, high = np.quantile(statistic(*drawn), [tail, 1 - tail])
    return Interval(value, float(low), float(high)) if low < high else Interval(value)


def _counts(rng: np.random.Generator, resamples: int, tasks: int) -> NDArray[np.intp]:
    """Return how often each resample draws each task, shape ``(resamples, tasks)``."""
    drawn = rng.integers(0, tasks, (resamples, tasks)) + tasks * np.arange(resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * tasks).reshape(resamples, tasks)


def interquartile_mean(runs: Floats) -> Floats:
    """Return the mean of the runs without the best and the worst quarter, over the last axis."""
    return stats.trim_mean(runs, 0.25, axis=-1)


def probability_of_improvement(a: Floats, b: Floats) -> Floats:
    """Return the probability that a run of A scores higher than one of B; ties count half."""
    difference = a[..., :, None] - b[..., None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))


def profile(scores: Scores, thresholds: ArrayLike) -> Floats:
    """Return the performance profile: the share of tasks whose mean score reaches a threshold.

    Args:
        scores: one unscaled array per split; scores of a task are averaged over seeds.
        thresholds: shape ``(n,)``.

    Returns:
        Shape ``(n,)``.
    """
    tasks = np.concatenate([split.mean(axis=0) for split in scores]).round(_DIGITS)
    return (tasks >= np.asarray(thresholds)[:, None]).mean(axis=1)


def area(iterations: ArrayLike, scores: ArrayLike) -> Floats:
    """Return the area under learning curves over their length: the mean score during training.

    Args:
        iterations: of the evaluations, shape ``(evaluations,)``, ascending.
        scores: shape ``(..., evaluations)``.

    Returns:
        Shape ``(...)``, in the unit of the scores.
    """
    x, y = np.asarray(iterations, np.float64), np.asarray(scores, np.float64)
    return y[..., 0] if len(x) == 1 else integrate.trapezoid(y, x, axis=-1) / (x[-1] - x[0])


def equal_time(scores: Sequence[Floats], seconds: Floats) -> Interval:
    """Return the difference of two arms in mean score over as much time, with its t interval.

    A curve is constant before its first iteration ends, and linear between the ends of iterations.

    Args:
        scores: of A and of B, by iteration, each of shape ``(seeds, iterations)``; NaN: no score.
        seconds: mean time of an iteration of A and of B, shape ``(2, seeds)``.
    """
    differences = []
    for *curves, times in zip(*scores, seconds.T, strict=True):
        ends = [step * np.arange(1, len(y) + 1) for y, step in zip(curves, times, strict=True)]
        grid = np.linspace(0, min(end[-1] for end in ends), 201)
        means = [
            np.interp(grid, x[np.isfinite(y)], y[np.isfinite(y)]).mean()
            for x, y in zip(ends, curves, strict=True)
        ]
        differences.append(means[0] - means[1])
    value, margin = float(np.mean(differences)), math.nan
    if len(differences) > 1:
        margin = float(stats.t.ppf(1 - LEVEL / 2, len(differences) - 1) * stats.sem(differences))
    return Interval(value, value - margin, value + margin)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979); NaN counts as 1 and stays NaN."""
    known = np.nan_to_num(np.asarray(p_values, np.float64), nan=1.0)
    order = np.argsort(known, kind="stable")
    steps = known[order] * np.arange(len(known), 0, -1)
    corrected = np.empty(len(known))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [
        math.nan if math.isnan(p) else float(c) for p, c in zip(p_values, corrected, strict=True)
    ]


def verdict(difference: Estimate, corrected: float) -> str:
    """Judge the claim that a difference is positive, given its p-value corrected by `holm`."""
    if math.isnan(corrected) or corrected >= LEVEL:
        return "cannot be told"
    return "holds here" if difference.low > 0 else "does not hold"


def power(
    difference: float,
    seeds: int,
    seed_variance: float,
    task_variance: float = 0.0,
    level: float = LEVEL,
) -> float:
    """Return the power of a two-sided t test of a paired difference.

    Args:
        difference: the true difference.
        seeds: number of pairs, at least 2.
        seed_variance: variance of the difference of a pair.
        task_variance: see `Estimate`.
        level: p-value below which the test rejects.
    """
    error = math.sqrt(seed_variance / seeds + task_variance)
    if error == 0:
        return 1.0
    df, shift = seeds - 1, difference / error
    bound = stats.t.ppf(1 - level / 2, df)
    # The other tail as one of -shift: SciPy's cdf is NaN where it is nearly 0.
    return float(stats.nct.sf(bound, df, shift) + stats.nct.sf(bound, df, -shift))


def seeds_needed(
    difference: float, seed_variance: float, task_variance: float = 0.0, level: float = LEVEL
) -> int | None:
    """Return how many seeds per arm show a difference with probability `POWER`.

    None: more than `MAX_SEEDS`. Arguments as in `power`.
    """
    for seeds in range(2, MAX_SEEDS + 1):
        if power(difference, seeds, seed_variance, task_variance, level) >= POWER:
            return seeds
    return None


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return Spearman's rank correlation and its interval.

    The interval is that of Fisher's transformation with the variance ``(1 + r²/2) / (n - 3)``
    (Bonett and Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations"). It is NaN if the orders are equal or opposite; all three are NaN if all values
    of `a` or of `b` are equal. `a` and `b` have the same length, at least 4.
    """
    if len(set(a)) < 2 or len(set(b)) < 2:
        return math.nan, math.nan, math.nan
    r = float(stats.spearmanr(a, b).statistic)
    if abs(r) > 1 - 1e-9:
        return r, math.nan, math.nan
    half = stats.norm.ppf(1 - LEVEL / 2) * math.sqrt((1 + r**2 / 2) / (len(a) - 3))
    return r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
