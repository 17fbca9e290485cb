"""The result of `hgpo bench credit`: how close estimated advantages are to the true ones.

True advantages are known with Monte-Carlo errors. Steps of one group of episodes are not
independent, because the estimate of one contains the returns of the others: intervals are
percentile bootstrap intervals that resample whole groups.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy import stats

from env_wrappers.files import validate_json
from hgpo_rllib.advantages.steps import Floats
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.reporting import style
from hgpo_rllib.section import Section

LEVEL = 0.05
"""Intervals are at 1 - LEVEL."""
RESAMPLES = 2000
SEED = 0
SIGNIFICANT = 2.576
"""Number of standard errors from 0 at which the sign of a true advantage counts as known (1 %)."""
PAIRS = (("hgpo", "gigpo"), ("hgpo", "grpo"), ("gigpo", "grpo"))
"""Estimators whose difference is tested."""
MEASURES = ("pearson", "pearson_corrected", "spearman", "sign", "scale", "bias", "variance", "mse")
PLOTTED = ("own", "hgpo", "gigpo", "grpo")  # estimators by depth
OFFSET = 0.16  # between the marks of one depth


class Interval(NamedTuple):
    """A value with its bootstrap interval; None: unknown."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "–"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Result(Section):
    """Content of result.json: the sampled steps in columns, one entry per step."""

    format: Literal["hgpo-credit-1"] = "hgpo-credit-1"
    protocol: dict[str, Any]
    group: list[int]
    """Number of the step's group of episodes, in the order of play."""
    member: list[int]
    time: list[int]
    q: list[float]
    """Mean return of the branches that execute the step's response."""
    v: list[float]
    """Mean return of the branches that sample the response."""
    error: list[float]
    """Standard error of ``q - v``, the true advantage."""
    estimates: dict[str, list[float]]
    """Advantages by estimator."""
    levels: dict[str, list[float]]
    """Advantages of HGPO's levels ("k = 0", …) and of the Oracle, each by itself."""
    sizes: dict[str, list[int]]
    """Size of the group with which a step is compared, by level."""


def load_result(path: Path) -> Result:
    """Read a result file.

    Raises:
        ConfigError, DataError: the file cannot be read, or is not a result.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return validate_json(TypeAdapter(Result), content, str(path))


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
        - ``mse``: mean of ``(c A - truth)²``, less the mean squared error of the truth;
        - ``variance``: ``mse - bias²``, the variance over steps.
    """
    pearson = correlation(estimate, truth)
    known = np.abs(truth) > SIGNIFICANT * error
    same = (1 + np.sign(estimate[known]) * np.sign(truth[known])[:, None]) / 2
    squares = (estimate**2).sum(axis=0)
    scale = np.divide(truth @ estimate, squares, out=np.zeros(len(squares)), where=squares > 0)
    difference = scale * estimate - truth[:, None]
    noise = (error**2).mean()
    return {
        "pearson": pearson,
        "pearson_corrected": pearson / math.sqrt(reliability(truth, error)),
        "spearman": correlation(stats.rankdata(estimate, axis=0), stats.rankdata(truth)),
        "sign": same.mean(axis=0) if known.any() else np.full(len(squares), np.nan),
        "scale": scale,
        "bias": difference.mean(axis=0),
        "variance": difference.var(axis=0) - noise,
        "mse": (difference**2).mean(axis=0) - noise,
    }


def resample(group: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows of as many groups as there are, drawn with replacement."""
    order = np.argsort(group, kind="stable")
    rows = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return np.concatenate([rows[index] for index in rng.integers(0, len(rows), len(rows))])


def compare(
    estimates: Mapping[str, Floats], truth: Floats, error: Floats, group: NDArray[np.int64]
) -> pd.DataFrame:
    """Measure estimators over the same steps, and over `RESAMPLES` resamples of groups.

    Returns:
        A frame with a column per measure and estimator. The first row is of the steps themselves,
        each other one of a resample.
    """
    columns = np.stack(list(estimates.values()), axis=1)
    rng = np.random.default_rng(SEED)
    samples = [np.arange(len(truth)), *(resample(group, rng) for _ in range(RESAMPLES))]
    found = [measure(columns[rows], truth[rows], error[rows]) for rows in samples]
    names = pd.MultiIndex.from_product([MEASURES, estimates])
    return pd.DataFrame([np.concatenate([row[m] for m in MEASURES]) for row in found], None, names)


def interval(column: pd.Series) -> Interval:
    """Return the percentile interval of a column of `compare`, or of a difference of columns.

    It is unknown if the value or most of the resamples' values are not finite.
    """
    value, drawn = column.iloc[0], column.iloc[1:]
    known = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or len(known) < len(drawn) / 2:
        return Interval(None, None, None)
    low, high = np.quantile(known, [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(value), float(low), float(high))


def tables(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of `hgpo bench credit`, with an `Interval` in every cell that has one.

    Correlations by level are not corrected: the reliability of few steps is not known well enough.
    It is the same for all estimates of a row.
    """
    truth, error = np.subtract(result.q, result.v), np.array(result.error)
    estimates = {name: np.array(column) for name, column in result.estimates.items()}
    found = compare(estimates, truth, error, np.array(result.group))
    share = reliability(truth, error)  # NaN if the noise is larger than the differences

    def rows(measures: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"estimator": name} | {m: interval(found[m, name]) for m in measures}
            for name in estimates
        ]

    return {
        "true advantages": [
            {
                "steps": len(truth),
                "groups": len(set(result.group)),
                "standard deviation": float(truth.std(ddof=1)),
                "standard error": math.sqrt((error**2).mean()),
                "reliability": None if math.isnan(share) else share,
                "significant": float((np.abs(truth) > SIGNIFICANT * error).mean()),
            }
        ],
        "correlation with the true advantage": rows(MEASURES[:3]),
        "agreement of signs, and errors after scaling": rows(MEASURES[3:]),
        "differences of estimators": [
            {"measure": m} | {f"{a} - {b}": interval(found[m, a] - found[m, b]) for a, b in PAIRS}
            for m in (*MEASURES[:4], "mse")
        ],
        "by depth of history": list(_levels(result, truth, error)),
    }


def _levels(result: Result, truth: Floats, error: Floats) -> Iterator[dict[str, Any]]:
    """Yield Pearson's correlations over the steps that a level compares, for levels with such."""
    for level, own in result.levels.items():
        rows = np.flatnonzero(np.array(result.sizes[level]) > 1)
        group = np.array(result.group)[rows]
        if len(np.unique(group)) < 2:
            continue
        columns = {"own": own} | {name: result.estimates[name] for name in PLOTTED[1:]}
        estimates = {name: np.array(column)[rows] for name, column in columns.items()}
        found = compare(estimates, truth[rows], error[rows], group)["pearson"]
        row = {"level": level, "compared": len(rows) / len(truth)}
        yield row | {name: interval(found[name]) for name in PLOTTED}


def figure(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a PNG with the correlations with the truth, by estimator and by depth of history.

    Args:
        tables: the result of `tables`.
    """
    with mpl.rc_context(style.STYLE):
        drawn, (left, right) = style.grid(2, 4.6, columns=2)
        rows = tables["correlation with the true advantage"][::-1]
        value, error = _error_bars(row["pearson_corrected"] for row in rows)
        left.errorbar(value, range(len(rows)), xerr=error, fmt="o", color=style.BLUE)
        left.set_yticks(range(len(rows)), [row["estimator"] for row in rows])
        left.set(title="Estimators, all sampled steps")
        left.set_xlabel("corrected correlation with the true advantage")
        rows = tables["by depth of history"]
        for index, name in enumerate(PLOTTED):
            value, error = _error_bars(row[name] for row in rows)
            places = np.arange(len(rows)) + OFFSET * (index - (len(PLOTTED) - 1) / 2)
            color = style.color_of(index)
            right.errorbar(places, value, yerr=error, fmt="o", color=color, label=name)
        right.set_xticks(
            range(len(rows)), [f"{row['level']}\n{row['compared']:.0%}" for row in rows]
        )
        right.set(title="Only steps that a level compares", ylim=(-1.05, 1.05))
        right.set_xlabel("level, and share of the steps that it compares")
        right.set_ylabel("correlation, not corrected")
        right.legend()
        return style.png(drawn)


def _error_bars(found: Iterable[Interval]) -> tuple[Floats, Floats]:
    """Return values and lengths of error bars, shape ``(2, values)``; NaN where unknown."""
    value, low, high = np.array(list(found), np.float64).reshape(-1, 3).T
    return value, np.maximum([value - low, high - value], 0.0)
