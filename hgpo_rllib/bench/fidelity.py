"""How close estimated advantages are to true ones that are known with Monte-Carlo errors.

An estimate is compared with the truth over a sample of steps. Steps of one group of episodes are
not independent, because the estimate of one contains the returns of the others: intervals are
percentile bootstrap intervals that resample whole groups.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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


def draws(
    statistic: Callable[[NDArray[np.intp]], Floats], group: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return a statistic of all rows, and of `RESAMPLES` resamples of groups."""
    rng = np.random.default_rng(SEED)
    drawn = [statistic(resample(group, rng)) for _ in range(RESAMPLES)]
    return statistic(np.arange(len(group))), np.stack(drawn)


def intervals(value: Floats, drawn: Floats) -> list[Interval]:
    """Return the percentile intervals of values, shape ``(n,)``, from draws ``(resamples, n)``."""
    results = []
    for number, column in zip(value, drawn.T, strict=True):
        known = column[np.isfinite(column)]
        if not np.isfinite(number) or len(known) < len(column) / 2:
            results.append(Interval(None, None, None))
            continue
        low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
        results.append(Interval(float(number), float(low), float(high)))
    return results


@dataclass(frozen=True)
class Measured:
    """Measures of several estimators over the same steps."""

    names: Sequence[str]
    value: Mapping[str, Floats]
    """By measure, shape ``(estimators,)``."""
    drawn: Mapping[str, Floats]
    """By measure, shape ``(resamples, estimators)``."""

    def rows(self, measures: Sequence[str]) -> list[dict[str, Any]]:
        """Return one row per estimator with the intervals of some measures."""
        columns = {name: intervals(self.value[name], self.drawn[name]) for name in measures}
        return [
            {"estimator": estimator} | {name: column[i] for name, column in columns.items()}
            for i, estimator in enumerate(self.names)
        ]

    def differences(self, measures: Sequence[str]) -> list[dict[str, Any]]:
        """Return one row per measure with the differences of `PAIRS` on the same resamples."""
        places = [(self.names.index(a), self.names.index(b)) for a, b in PAIRS]
        rows = []
        for name in measures:
            value = np.array([self.value[name][a] - self.value[name][b] for a, b in places])
            drawn = np.stack(
                [self.drawn[name][:, a] - self.drawn[name][:, b] for a, b in places], axis=1
            )
            found = intervals(value, drawn)
            titles = [f"{a} - {b}" for a, b in PAIRS]
            rows.append({"measure": name} | dict(zip(titles, found, strict=True)))
        return rows


def compare(
    estimates: Mapping[str, Floats], truth: Floats, error: Floats, group: NDArray[np.int64]
) -> Measured:
    """Measure estimators over the same steps, with the draws of the bootstrap."""
    columns = np.stack(list(estimates.values()), axis=1)

    def statistic(rows: NDArray[np.intp]) -> Floats:
        measures = measure(columns[rows], truth[rows], error[rows])
        return np.stack([measures[name] for name in MEASURES])

    value, drawn = draws(statistic, group)
    return Measured(
        list(estimates),
        dict(zip(MEASURES, value, strict=True)),
        {name: drawn[:, i] for i, name in enumerate(MEASURES)},
    )


def tables(sample: Comparison) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of `hgpo bench credit`, with an `Interval` in every cell that has one."""
    measured = compare(sample.estimates, sample.truth, sample.error, sample.group)
    noise = float((sample.error**2).mean())
    return {
        "true advantages": [
            {
                "steps": len(sample.truth),
                "groups": len(np.unique(sample.group)),
                "standard deviation": float(sample.truth.std(ddof=1)),
                "standard error": math.sqrt(noise),
                "reliability": reliability(sample.truth, sample.error),
                "significant": float((np.abs(sample.truth) > SIGNIFICANT * sample.error).mean()),
            }
        ],
        "correlation with the true advantage": measured.rows(MEASURES[:3]),
        "agreement of signs, and errors after scaling": measured.rows(MEASURES[3:]),
        "differences of estimators": measured.differences((*MEASURES[:4], "mse")),
        "by depth of history": [level_row(*level) for level in _levels(sample)],
    }


def _levels(sample: Comparison) -> list[tuple[str, float, Measured]]:
    """Return name, share of compared steps and measures over these, for each level with such."""
    found = []
    for name, own in sample.levels.items():
        rows = np.flatnonzero(sample.sizes[name] > 1)
        group = sample.group[rows]
        if len(np.unique(group)) < 2:
            continue
        others = {title: sample.estimates[title][rows] for title in ("hgpo", "gigpo", "grpo")}
        measured = compare(
            {"own": own[rows]} | others, sample.truth[rows], sample.error[rows], group
        )
        found.append((name, len(rows) / len(sample.truth), measured))
    return found


def level_row(name: str, share: float, measured: Measured) -> dict[str, Any]:
    """Return the row of a level: Pearson's correlations over the steps that it compares.

    They are not corrected: with few steps, the reliability is not known well enough. It is the same
    for all estimates of a row.
    """
    found = intervals(measured.value["pearson"], measured.drawn["pearson"])
    return {"level": name, "compared": share} | dict(zip(measured.names, found, strict=True))
