"""Rows of metrics.jsonl and evaluation.jsonl, for the tests of the reports."""

import math
from typing import Any


def metrics_row(iteration: int) -> dict[str, Any]:
    """Return one row, with a number missing and one that is none."""
    return {
        "iteration": iteration,
        "wall_s": 20.0 * iteration,
        "env_steps": 1000 * iteration,
        "success_rate": 0.1 * iteration,
        "return_mean": float(iteration),
        "rollout_s": 9.0,
        "advantage_s": 1.0,
        "update_s": 5.0,
        "tokens_per_s": 1234.0,
        "kl": 0.01,
        "clip_fraction": 0.002,
        "grad_norm": None,
        "entropy": math.nan,
        "served_learner_logp_gap": 1e-3,
        "level_fraction_k0": 1.0,
        "level_fraction_k1": 0.5,
        "level_fraction_k10": 0.1,
        "zero_advantage_fraction": 0.25,
    }


def evaluation_row(
    iteration: int, split: str, rate: float, error: float, episodes: int
) -> dict[str, Any]:
    """Return the result of one split."""
    return {
        "iteration": iteration,
        "split": split,
        "success_rate": rate,
        "standard_error": error,
        "episodes": episodes,
        "temperature": 0.4,
        "by_task_type": {"pick_and_place": {"success_rate": rate, "episodes": 25}},
    }
