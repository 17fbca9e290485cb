"""Summary statistics of episodes."""

from typing import Any

import pandas as pd


def summarize(episodes: pd.DataFrame) -> dict[str, Any]:
    """Return success rate, number and mean length of episodes, and success rate per task family.

    Args:
        episodes: one row per episode, with `task_type`, `success` and `episode_length`.
    """
    families = episodes.groupby("task_type")["success"].agg(["mean", "size"])
    return {
        "success_rate": float(episodes["success"].mean()),
        "episodes": len(episodes),
        "episode_length": float(episodes["episode_length"].mean()),
        "by_task_type": {
            str(row.Index): {"success_rate": float(row.mean), "episodes": int(row.size)}
            for row in families.itertuples()
        },
    }
