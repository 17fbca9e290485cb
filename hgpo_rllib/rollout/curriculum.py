"""A curriculum: more tasks of the types from which there is most to learn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.rollout.trajectory import Trajectory

SMALLEST_WEIGHT = 0.1
"""Minimum weight of a task type, so that one that always or never succeeds is still drawn."""
LATEST_WEIGHT = 0.1
"""Weight of the latest group in the moving average of its task type's success rate."""


class Curriculum(TaskOrder):
    """Draws tasks, each with a weight of ``max(SMALLEST_WEIGHT, 4 p (1 - p))``.

    p is the success rate of the task's type, a moving average over its groups that begins at 0.5.
    If p is near 0 or 1, the variance p (1 - p) of an outcome is small, and the members of a group
    usually have equal returns, from which estimators that compare them learn nothing.

    The seed, the number of a draw and the current rates determine the task.
    """

    def __init__(self, task_types: Sequence[str], seed: int):
        """`task_types` has the type of each task."""
        super().__init__(len(task_types), seed)
        names, self._task_type = np.unique(task_types, return_inverse=True)
        self.rates = dict.fromkeys(names.tolist(), 0.5)

    def task(self, place: int) -> int:
        """Return the task number of a draw."""
        weights = [max(SMALLEST_WEIGHT, 4 * rate * (1 - rate)) for rate in self.rates.values()]
        chances = np.array(weights)[self._task_type]
        random = np.random.default_rng([self.seed, place])
        return int(random.choice(self.num_tasks, p=chances / chances.sum()))

    def update(self, group: Sequence[Trajectory]) -> None:
        """Include the outcomes of a group in the rate of its task type."""
        if group:
            task_type = task_type_of(group[0].info)
            success = float(np.mean([trajectory.won for trajectory in group]))
            self.rates[task_type] += LATEST_WEIGHT * (success - self.rates[task_type])


def task_type_of(info: Mapping[str, Any]) -> str:
    """Return the type of a task as in `task_types` of its environment."""
    mixture = info.get("mixture")
    return f"{mixture['environment']}/{info['task_type']}" if mixture else info["task_type"]
