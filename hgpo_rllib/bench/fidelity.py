"""How close estimated advantages are to true ones that are known with Monte-Carlo errors.

An estimate is compared with the truth over a sample of steps. Steps of one group of episodes are
not independent, because the estimate of one contains the returns of the others: intervals are
percentile bootstrap intervals that resample whole groups.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.05
"""Intervals are at 1 - LEVEL."""
RESAMPLES = 2000
SEED = 0
SIGNIFICANT = 2.576
"""Number of standard errors from 0 at which the sign of a true advantage counts as known (1 %)."""
PAIRS = (("hgpo", "gigpo"), ("hgpo", "grpo"), ("gigpo", "grpo"))
"""Estimators whose difference is tested."""
MEASURES = ("pearson", "pearson_corrected", "spearman", "sign", "scale", "bias", "mse")

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A value with its bootstrap interval; None: unknown."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "–"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Comparison:
    """Sampled steps with their true advantages and estimates; arrays have shape ``(steps,)``."""

    group: NDArray[np.int64]
    """Number of the step's group of episodes."""
    truth: Floats
    """Unbiased estimate of the true advantage."""
    error: Floats
    """Its standard error."""
    estimates: Mapping[str, Floats]
    """Advantages by estimator."""
    levels: Mapping[str, Floats]
    """Advantages of HGPO's levels ("k = 0", …) and of the Oracle, each by itself."""
    sizes: Mapping[str, NDArray[np.int64]]
    """Size of the group with which a step is compared, by level."""


def correlation(estimate: Floats, truth: Floats) -> Floats:
    """Return Pearson's correlation of each column with the truth; NaN for a constant column.

    Args:
        estimate: shape ``(steps, estimators)``.
        truth: shape ``(steps,)``.

    Returns:
        Shape ``(estimators,)``.
    """
    a, t = estimate - estimate.mean(axis=0), truth - truth.mean()
    scale = np.sqrt((a**2).sum(axis=0) * (t**2).sum())
    return np.divide(t @ a, scale, out=np.full(len(scale), np.nan), where=scale > 1e-12)


def reliability(truth: Floats, error: Floats) -> float:
    """Return the share of the truth's variance that is not Monte-Carlo noise; NaN if not positive.

    The noise is independent of estimates and true advantages and has mean 0. It therefore adds its
    mean square error to the variance of the truth, and nothing to covariances: a correlation with
    the noise-free truth is that with the noisy one, divided by the square root of this share.
    """
    variance = truth.var(ddof=1)
    share = 1 - (error**2).mean() / variance if variance > 0 else 0.0
    return float(share) if share > 0 else math.nan


def measure(estimate: Floats, truth: Floats, error: Floats) -> dict[str, Floats]:
    """Compare estimates with the truth.

    Args:
        estimate: shape ``(steps, estimators)``.
        truth: unbiased estimates of the true advantages, shape ``(steps,)``.
        error: their standard errors, shape ``(steps,)``.

    Returns:
        By the names in `MEASURES`, shape ``(estimators,)``:

        - ``pearson``, ``spearman``: correlations with the noisy truth, which are too small;
        - ``pearson_corrected``: for the noise, see `reliability`. For ranks there is no such rule;
        - ``sign``: share of equal signs where the true advantage is significantly not 0
          (`SIGNIFICANT`); an estimate of exactly 0 counts one half;
        - ``scale``: factor c with the least squared error ``(c A - truth)²``, as estimators have
          different units;
        - ``bias``: mean of ``c A - truth``;
        - ``mse``: mean of ``(c A - truth)²``, less the mean squared error of the truth.
    """
    pearson = correlation(estimate, truth)
    known = np.abs(truth) > SIGNIFICANT * error
    same = (1 + np.sign(estimate[known]) * np.sign(truth[known])[:, None]) / 2
    squares = (estimate**2).sum(axis=0)
    scale = np.divide(truth @ estimate, squares, out=np.zeros(len(squares)), where=squares > 0)
    difference = scale * estimate - truth[:, None]
    return {
        "pearson": pearson,
        "pearson_corrected": pearson / math.sqrt(reliability(truth, error)),
        "spearman": correlation(stats.rankdata(estimate, axis=0), stats.rankdata(truth)),
        "sign": same.mean(axis=0) if known.any() else np.full(len(squares), np.nan),
        "scale": scale,
        "bias": difference.mean(axis=0),
        "mse": (difference**2).mean(axis=0) - (error**2).mean(),
    }


def resample(group: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows of as many groups as there are, drawn with replacement."""
    order = np.argsort(group, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return np.concatenate([rows[index] for index in rng.integers(0, len(rows), len(rows))])


def interval(value: float, drawn: Floats) -> Interval:
    """Return the percentile interval of a value from its draws, shape ``(resamples,)``.

    It is unknown if the value or most of the draws are not finite.
    """
    known = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or len(known) < len(drawn) / 2:
        return Interval(None, None, None)
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(value), float(low), float(high))


@dataclass(frozen=True)
class Measured:
    """Measures of several estimators over the same steps."""

    names: Sequence[str]
    value: Mapping[str, Floats]
    """By measure, shape ``(estimators,)``."""
    drawn: Mapping[str, Floats]
    """By measure, shape ``(resamples, estimators)``."""

    def interval(self, measure: str, name: str) -> Interval:
        """Return a measure of one estimator."""
        place = self.names.index(name)
        return interval(self.value[measure][place], self.drawn[measure][:, place])

    def difference(self, measure: str, a: str, b: str) -> Interval:
        """Return the difference of two estimators on the same resamples."""
        value, drawn = self.value[measure], self.drawn[measure]
        i, j = self.names.index(a), self.names.index(b)
        return interval(value[i] - value[j], drawn[:, i] - drawn[:, j])


def compare(
    estimates: Mapping[str, Floats], truth: Floats, error: Floats, group: NDArray[np.int64]
) -> Measured:
    """Measure estimators over the same steps, and over `RESAMPLES` resamples of groups."""
    columns = np.stack(list(estimates.values()), axis=1)
    rng = np.random.default_rng(SEED)
    samples = [resample(group, rng) for _ in range(RESAMPLES)]
    drawn = [measure(columns[rows], truth[rows], error[rows]) for rows in samples]
    return Measured(
        list(estimates),
        measure(columns, truth, error),
        {name: np.stack([found[name] for found in drawn]) for name in MEASURES},
    )


def tables(sample: Comparison) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of `hgpo bench credit`, with an `Interval` in every cell that has one.

    Correlations by level are not corrected: the reliability of few steps is not known well enough.
    It is the same for all estimates of a row.
    """
    measured = compare(sample.estimates, sample.truth, sample.error, sample.group)

    def rows(measures: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"estimator": name} | {m: measured.interval(m, name) for m in measures}
            for name in measured.names
        ]

    return {
        "true advantages": [
            {
                "steps": len(sample.truth),
                "groups": len(np.unique(sample.group)),
                "standard deviation": float(sample.truth.std(ddof=1)),
                "standard error": math.sqrt((sample.error**2).mean()),
                "reliability": reliability(sample.truth, sample.error),
                "significant": float((np.abs(sample.truth) > SIGNIFICANT * sample.error).mean()),
            }
        ],
        "correlation with the true advantage": rows(MEASURES[:3]),
        "agreement of signs, and errors after scaling": rows(MEASURES[3:]),
        "differences of estimators": [
            {"measure": m} | {f"{a} - {b}": measured.difference(m, a, b) for a, b in PAIRS}
            for m in (*MEASURES[:4], "mse")
        ],
        "by depth of history": list(_levels(sample)),
    }


def _levels(sample: Comparison) -> Iterator[dict[str, Any]]:
    """Yield Pearson's correlations over the steps that a level compares, for levels with such."""
    for level, own in sample.levels.items():
        rows = np.flatnonzero(sample.sizes[level] > 1)
        group = sample.group[rows]
        if len(np.unique(group)) < 2:
            continue
        others = {name: sample.estimates[name][rows] for name in ("hgpo", "gigpo", "grpo")}
        measured = compare(
            {"own": own[rows]} | others, sample.truth[rows], sample.error[rows], group
        )
        correlations = {name: measured.interval("pearson", name) for name in measured.names}
        yield {"level": level, "compared": len(rows) / len(sample.truth)} | correlations
