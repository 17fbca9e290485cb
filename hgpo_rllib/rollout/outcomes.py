"""Summary statistics of episodes."""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike


def summarize(episodes: pd.DataFrame) -> dict[str, Any]:
    """Return success rate, number and mean length of episodes, and success rate per task type.

    Args:
        episodes: one row per episode, with `task_type`, `success` and `episode_length`.
    """
    task_types = episodes.groupby("task_type")["success"].agg(["mean", "size"])
    return {
        "success_rate": float(episodes["success"].mean()),
        "episodes": len(episodes),
        "episode_length": float(episodes["episode_length"].mean()),
        "by_task_type": {
            str(row.Index): {"success_rate": float(row.mean), "episodes": int(row.size)}
            for row in task_types.itertuples()
        },
    }


def clustered_error(values: ArrayLike, games: ArrayLike) -> float:
    """Return the standard error of the mean of `values`, where ``games[i]`` is the game of value i.

    Episodes of one game are correlated, so the error is that of a ratio of sums over games
    (cluster-robust, with the correction G / (G - 1) for G games). NaN for a single game.
    """
    index, names = pd.factorize(np.asarray(games))
    array = np.asarray(values, np.float64)
    residuals = np.bincount(index, array - array.mean())
    if len(names) < 2:
        return math.nan
    return math.sqrt(len(names) / (len(names) - 1) * (residuals**2).sum()) / len(array)
