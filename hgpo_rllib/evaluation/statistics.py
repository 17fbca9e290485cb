"""Results of an evaluation: means over games with their uncertainty, and paired tests.

Episodes of one game with different seeds are correlated, so games are resampled, not episodes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from hgpo_rllib.advantages.steps import Floats
from hgpo_rllib.rollout.outcomes import clustered_error, summarize

MEASURES = ("success_rate", "score")
CONFIDENCE = 0.95
RESAMPLES = 9999
"""Resamples of bootstraps and permutation tests. The smallest p-value of the latter is 2e-4, unless
the test is exact."""
SEED = 0
_ROUNDING_ERROR = 1e-12  # smaller differences count as 0
_BATCH = 500  # resamples at a time; all of them would take gigabytes of memory


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes. Its errors are those of sampling games.

    For one game they are None, except those of `estimate_share` for a share of 0 or 1.
    """

    mean: float
    standard_error: float | None
    low: float | None
    """Lower bound of the percentile bootstrap interval at `CONFIDENCE`."""
    high: float | None


@dataclass(frozen=True)
class PairedTest:
    """Test of a difference B - A on the same games."""

    difference: Estimate
    p_value: float
    """Two-sided p-value of the sign-flip permutation test over games."""
    better: int
    """Number of games on which B's mean is higher."""
    worse: int
    equal: int


def estimate(values: ArrayLike, games: ArrayLike) -> Estimate:
    """Estimate the mean of `values`, one per episode, where ``games[i]`` is the game of episode i.

    The standard error is `clustered_error`; games can have different numbers of episodes.
    """
    sums, counts = per_game(values, games)
    mean, number = float(sums.sum() / counts.sum()), len(sums)
    if number < 2:
        return Estimate(mean, None, None, None)
    error = clustered_error(values, games)
    if error == 0:
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
    return Estimate(mean, error, float(interval.low), float(interval.high))


def estimate_share(values: ArrayLike, games: ArrayLike) -> Estimate:
    """`estimate` the mean of values from 0 to 1.

    If all values are 0 or all are 1, the bootstrap interval has no width. The interval is then the
    exact binomial one (Clopper-Pearson) for this number of games.
    """
    found = estimate(values, games)
    if found.low != found.high or found.mean not in (0.0, 1.0):
        return found
    number = len(np.unique(np.asarray(games)))
    wins = number if found.mean == 1 else 0
    interval = stats.binomtest(wins, number).proportion_ci(CONFIDENCE, "exact")
    return replace(found, low=float(interval.low), high=float(interval.high))


def per_game(values: ArrayLike, games: ArrayLike) -> tuple[Floats, Floats]:
    """Return the sum of values and the number of episodes per game, sorted by game."""
    index, _ = pd.factorize(np.asarray(games), sort=True)
    sums = np.bincount(index, np.asarray(values, np.float64))
    return sums.astype(np.float64), np.bincount(index).astype(np.float64)


def compare_means(a: pd.Series, b: pd.Series, clusters: pd.Series | None = None) -> PairedTest:
    """Test per-game means B against A; all series are indexed by game.

    The permutation test swaps A and B on each game at random. With few games it enumerates all
    permutations and is exact. It then equals McNemar's exact test if every game was played once
    with a binary result. `clusters` may have more games; those of one cluster are swapped and
    resampled together.
    """
    by_game = b - a
    differences = by_game.to_numpy(copy=True)
    differences[np.abs(differences) < _ROUNDING_ERROR] = 0.0
    units = by_game.index if clusters is None else clusters.loc[by_game.index]
    return PairedTest(
        _widened(estimate(differences, units), len(set(units))),
        _sign_flip_p(per_game(differences, units)[0]),
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        equal=int((differences == 0).sum()),
    )


def _widened(found: Estimate, units: int) -> Estimate:
    """Widen an interval without width, of a difference that is the same on all units.

    Resampling shows no uncertainty then. As many other units can differ as the exact binomial
    interval allows. Differences are from -1 to 1; for others, the interval is returned as it is.
    """
    if found.low is None or found.high is None or abs(found.mean) > 1:
        return found
    if found.high - found.low > _ROUNDING_ERROR:
        return found
    most = 1 - ((1 - CONFIDENCE) / 2) ** (1 / units)
    low, high = found.mean - most * (1 + found.mean), found.mean + most * (1 - found.mean)
    return replace(found, low=low, high=high)


def _sign_flip_p(differences: Floats) -> float:
    """Return the p-value; games (or clusters) without a difference do not affect it."""
    changed = differences[np.abs(differences) >= _ROUNDING_ERROR]
    if len(changed) < 2:
        return 1.0  # the signs of one game are equally extreme
    result = stats.permutation_test(
        (changed,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        alternative="two-sided",
        n_resamples=RESAMPLES,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return min(1.0, float(result.pvalue))


def _mean(values: Floats, axis: int) -> Floats:
    """Return means; exactly 0 if only rounding errors are left, so that ties are counted."""
    mean = values.mean(axis)
    return np.where(np.abs(mean) < _ROUNDING_ERROR, 0.0, mean)


def results(episodes: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Compute the results of an evaluation over all episodes, per task type, and per seed.

    See `hgpo_rllib.results.Evaluation` for the frames.
    """
    keys = ["seed", "place"]
    steps = steps.merge(episodes[[*keys, "task_type"]], on=keys)
    return {
        "all": result(episodes, steps),
        "by_task_type": {
            str(name): result(part, steps[steps["task_type"] == name])
            for name, part in episodes.groupby("task_type")
        },
        "by_seed": {
            str(seed): summarize(part) | {"score": float(part["score"].mean())}
            for seed, part in episodes.groupby("seed")
        },
    }


def result(episodes: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Compute the results of the given episodes and their steps."""
    success, length = episodes["success"], episodes["episode_length"]
    return {
        "episodes": len(episodes),
        "lost": int((~success).sum()),
        "games": episodes["game"].nunique(),
        "success_rate": asdict(estimate_share(success.astype(float), episodes["game"])),
        "score": asdict(estimate_share(episodes["score"], episodes["game"])),
        "steps": float(length.mean()),
        "steps_of_won": float(length[success].mean()) if success.any() else None,
        "trials": float(episodes["trials"].mean()),
        "invalid_rate": float((~steps["is_valid"]).mean()),
        "inadmissible_rate": float(steps["inadmissible"].mean()),
        "truncated_prompt_rate": float(steps["prompt_truncated"].mean()),
        "truncated_response_rate": float(steps["response_truncated"].mean()),
        "prompt_tokens": float(episodes["prompt_tokens"].mean()),
        "response_tokens": float(episodes["response_tokens"].mean()),
    }
