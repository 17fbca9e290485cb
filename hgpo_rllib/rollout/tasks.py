"""The order in which tasks are played."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.rollout.trajectory import Trajectory

HELD_OUT_ORDER_SEED = 0
"""Seed of the order of held-out tasks: in sorted order, tasks of one type would be adjacent."""


class TaskOrder:
    """Infinite sequence of task numbers. Every epoch visits each task once, in a new order.

    The order depends only on the seed.
    """

    def __init__(self, num_tasks: int, seed: int):
        """Create the order of tasks 0 to `num_tasks` - 1."""
        self.num_tasks = num_tasks
        self.seed = seed
        self.rates: dict[str, float] = {}
        """Success rate of each task type; only a curriculum has them."""

    def first(self, count: int) -> list[int]:
        """Return the first `count` task numbers."""
        return [self.task(place) for place in range(count)]

    def task(self, place: int) -> int:
        """Return the task number at a place, from 0."""
        epoch, index = divmod(place, self.num_tasks)
        return int(_permutation(self.num_tasks, self.seed, epoch)[index])

    def update(self, group: Sequence[Trajectory]) -> None:
        """Do nothing: the outcomes of a group do not change the order."""


@lru_cache(maxsize=4)  # slow for millions of tasks
def _permutation(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)
