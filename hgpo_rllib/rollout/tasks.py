"""The order in which tasks are visited."""

import numpy as np

HELD_OUT_ORDER_SEED = 0
"""Of the order in which held-out games are played: sorted games are one family after the other."""


class TaskOrder:
    """Endless task numbers: every epoch visits each task once, in an order of its own.

    The order is a function of the seed and the position alone, so its state is one integer.
    """

    def __init__(self, num_tasks: int, seed: int):
        """Start before the first task."""
        self.num_tasks = num_tasks
        self.seed = seed
        self.position = 0

    def take(self, count: int) -> list[int]:
        """The next `count` task numbers."""
        places = range(self.position, self.position + count)
        self.position += count
        return [self._task(place) for place in places]

    def _task(self, place: int) -> int:
        epoch, index = divmod(place, self.num_tasks)
        return int(np.random.default_rng([self.seed, epoch]).permutation(self.num_tasks)[index])
