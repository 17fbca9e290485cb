"""What the episodes of an evaluation say together."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hgpo_rllib.evaluation.records import Record
from hgpo_rllib.evaluation.statistics import estimate_share
from hgpo_rllib.rollout.outcomes import Outcome, summarize

MEASURES = ("success_rate", "score")


def results(records: Sequence[Record]) -> dict[str, Any]:
    """The numbers of an evaluation: of all episodes, per task family, and per seed."""
    families = sorted({record["task_type"] for record in records})
    seeds = sorted({record["seed"] for record in records})
    return {
        "all": result(records),
        "by_task_type": {
            name: result([r for r in records if r["task_type"] == name]) for name in families
        },
        "by_seed": {
            str(seed): summarize(outcomes([r for r in records if r["seed"] == seed]))
            | {"score": float(np.mean([r["score"] for r in records if r["seed"] == seed]))}
            for seed in seeds
        },
    }


def result(records: Sequence[Record]) -> dict[str, Any]:
    """The numbers of some episodes."""
    common = summarize(outcomes(records))
    games = [record["game"] for record in records]
    values = {
        "success_rate": [float(record["success"]) for record in records],
        "score": [record["score"] for record in records],
    }
    return {
        "episodes": common["episodes"],
        "lost": sum(not record["success"] for record in records),
        "games": len(set(games)),
        **{name: estimate_share(values[name], games).as_dict() for name in MEASURES},
        "steps": common["episode_length"],
        "steps_of_won": _mean([len(r["steps"]) for r in records if r["success"]]),
        "trials": _mean([r["trials"] for r in records]),
        "invalid_rate": _rate(records, lambda step: not step["is_valid"]),
        "inadmissible_rate": _rate(records, lambda step: step["inadmissible"]),
        "truncated_prompt_rate": _rate(records, lambda step: step["prompt_truncated"]),
        "truncated_response_rate": _rate(records, lambda step: step["response_truncated"]),
        "prompt_tokens": _mean([r["prompt_tokens"] for r in records]),
        "response_tokens": _mean([r["response_tokens"] for r in records]),
    }


def outcomes(records: Sequence[Record]) -> list[Outcome]:
    """How episodes ended."""
    return [Outcome(r["task_type"], r["success"], len(r["steps"])) for r in records]


def _rate(records: Sequence[Record], holds: Any) -> float:
    """Share of steps."""
    return float(np.mean([bool(holds(step)) for record in records for step in record["steps"]]))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
