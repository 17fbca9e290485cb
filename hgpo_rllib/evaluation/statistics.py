"""Means over games with their uncertainty, and paired tests. Pure NumPy and SciPy.

Episodes of one game are alike, whatever the seed that decodes them: games are drawn, not episodes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 9999
"""Of bootstraps and permutations; the p-value of a permutation test is a multiple of 1 / 10,000."""
SEED = 0
_BATCH = 500  # resamples at a time: all at once would take gigabytes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes; the errors are those of drawing other games, None with only one."""

    mean: float
    standard_error: float | None
    low: float | None
    """Of the percentile bootstrap interval, at `CONFIDENCE`."""
    high: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class PairedTest:
    """A difference B - A on the same games."""

    difference: Estimate
    p_value: float
    """Two-sided, of the sign-flip permutation test over games."""
    better: int
    """Games on which B's mean is higher."""
    worse: int
    equal: int


def estimate(values: ArrayLike, games: ArrayLike) -> Estimate:
    """The mean of `values`, each of an episode of the game at the same place.

    The standard error is that of a ratio of sums over games (cluster-robust), so that games may
    have different numbers of episodes.
    """
    sums, counts = per_game(values, games)
    mean, number = float(sums.sum() / counts.sum()), len(sums)
    if number < 2:
        return Estimate(mean, None, None, None)
    residuals = sums - mean * counts
    variance = number / (number - 1) * (residuals**2).sum()
    if not residuals.any():
        return Estimate(mean, 0.0, mean, mean)
    interval = stats.bootstrap(
        (sums, counts),
        lambda s, c, axis: s.sum(axis) / c.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    error = float(np.sqrt(variance) / counts.sum())
    return Estimate(mean, error, float(interval.low), float(interval.high))


def estimate_share(values: ArrayLike, games: ArrayLike) -> Estimate:
    """`estimate` of values from 0 to 1.

    Where all are 0, or all are 1, resampling knows no uncertainty; the interval is then the exact
    binomial one (Clopper-Pearson) of as many games.
    """
    found = estimate(values, games)
    if found.low != found.high or found.mean not in (0.0, 1.0):
        return found
    number = len(np.unique(np.asarray(games)))
    wins = number if found.mean == 1 else 0
    interval = stats.binomtest(wins, number).proportion_ci(CONFIDENCE, "exact")
    return replace(found, low=float(interval.low), high=float(interval.high))


def per_game(values: ArrayLike, games: ArrayLike) -> tuple[Floats, Floats]:
    """Sum of the values and number of episodes of each game, in the order of the games' names."""
    index, _ = pd.factorize(np.asarray(games), sort=True)
    sums = np.bincount(index, np.asarray(values, np.float64))
    return sums.astype(np.float64), np.bincount(index).astype(np.float64)


def compare_means(a: pd.Series, b: pd.Series) -> PairedTest:
    """Test the means of games, which both are indexed by, against each other.

    The permutation test exchanges A and B on each game at random. With few games it takes all
    exchanges and is exact; where every game was played once and won or lost it is then McNemar's
    exact test.
    """
    by_game = (b - a).sort_index()
    assert by_game.notna().all(), "the same games"
    differences = by_game.to_numpy(copy=True)
    differences[np.abs(differences) < 1e-12] = 0.0
    return PairedTest(
        estimate(differences, by_game.index),
        _sign_flip_p(differences),
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        equal=int((differences == 0).sum()),
    )


def _sign_flip_p(differences: Floats) -> float:
    """Games without a difference do not matter."""
    changed = differences[differences != 0]
    if len(changed) == 0:
        return 1.0
    if len(changed) == 1:
        return 1.0  # both signs are as extreme
    result = stats.permutation_test(
        (changed,),
        lambda x, axis: x.mean(axis),
        permutation_type="samples",
        vectorized=True,
        alternative="two-sided",
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return min(1.0, float(result.pvalue))
