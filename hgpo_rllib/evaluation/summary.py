"""Compute the results of an evaluation from its episodes and steps as DataFrames."""

from typing import Any

import pandas as pd

from hgpo_rllib.evaluation.statistics import estimate_share
from hgpo_rllib.rollout.outcomes import summarize

MEASURES = ("success_rate", "score")


def results(episodes: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Compute the results of an evaluation over all episodes, per task family, and per seed.

    Args:
        episodes: see `hgpo_rllib.results.Evaluation`.
        steps: see `hgpo_rllib.results.Evaluation`.
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
        "success_rate": estimate_share(success.astype(float), episodes["game"]).as_dict(),
        "score": estimate_share(episodes["score"], episodes["game"]).as_dict(),
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
