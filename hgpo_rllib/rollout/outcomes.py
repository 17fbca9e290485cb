"""How episodes ended, and what they say together."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """How one episode ended."""

    task_type: str
    success: bool
    steps: int


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Success rate, number and mean length of episodes, and success per task family."""
    by_type: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        by_type[outcome.task_type].append(outcome.success)
    return {
        "success_rate": float(np.mean([outcome.success for outcome in outcomes])),
        "episodes": len(outcomes),
        "episode_length": float(np.mean([outcome.steps for outcome in outcomes])),
        "by_task_type": {
            task_type: {"success_rate": float(np.mean(successes)), "episodes": len(successes)}
            for task_type, successes in sorted(by_type.items())
        },
    }
