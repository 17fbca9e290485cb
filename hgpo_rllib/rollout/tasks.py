"""The order in which tasks are played."""

import numpy as np

HELD_OUT_ORDER_SEED = 0
"""Seed of the order of held-out tasks: in sorted order, tasks of one family would be adjacent."""


class TaskOrder:
    """Infinite sequence of task numbers. Every epoch visits each task once, in a new order.

    The order depends only on the seed and the position, so the state is one integer.
    """

    def __init__(self, num_tasks: int, seed: int):
        """Start at the first task."""
        self.num_tasks = num_tasks
        self.seed = seed
        self.position = 0

    def take(self, count: int) -> list[int]:
        """Return the next `count` task numbers."""
        places = range(self.position, self.position + count)
        self.position += count
        return [self._task(place) for place in places]

    def _task(self, place: int) -> int:
        epoch, index = divmod(place, self.num_tasks)
        return int(np.random.default_rng([self.seed, epoch]).permutation(self.num_tasks)[index])
