"""Plan the episodes of an evaluation: every game per seed, or draws like the released agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.rollout.tasks import HELD_OUT_ORDER_SEED, TaskOrder

DEFAULT_SEEDS = 3
RELEASED_SEEDS = (123, 456, 789)
RELEASED_TASKS = 512
RELEASED_ENVIRONMENTS = 128
"""Number of environments of the released validation, which draws as many tasks at a time."""
RELEASED_OFFSET = 1000  # added to the seed of validation environments
Kind = Literal["full", "released"]


class PlannedEpisode(NamedTuple):
    """One episode to play."""

    seed: int
    """Seed of its responses."""
    place: int
    """Position in the order of games."""
    task: int
    """Number of the task in its split."""


@dataclass(frozen=True)
class Plan:
    """The games of an evaluation."""

    kind: Kind
    tasks: Mapping[int, Sequence[int]]
    """Numbers of the tasks in their split, in the order of play, by the seed of responses."""

    @property
    def episodes(self) -> list[PlannedEpisode]:
        """All episodes, by seed and place."""
        return [
            PlannedEpisode(seed, place, task)
            for seed, tasks in self.tasks.items()
            for place, task in enumerate(tasks)
        ]


def full_plan(num_tasks: int, seeds: int, games: int | None) -> Plan:
    """Plan every game, or the first `games` of the fixed order, once per seed 0, 1, ….

    Raises:
        ConfigError: the split has fewer than `games` games.
    """
    count = num_tasks if games is None else games
    if count > num_tasks:
        raise ConfigError(f"--games {count}: the split has {num_tasks}; leave it out for all")
    tasks = TaskOrder(num_tasks, HELD_OUT_ORDER_SEED).first(count)
    return Plan("full", dict.fromkeys(range(seeds), tasks))


def released_plan(num_tasks: int, games: int | None, by_worker: bool) -> Plan:
    """Plan draws of 128 games at a time for each released seed; games can repeat.

    Args:
        num_tasks: number of games in the split.
        games: draws per seed; None: 512.
        by_worker: whether each of the 128 environments follows its own shuffle of the games.
            Otherwise one generator draws 128 different games at a time.
    """
    count = RELEASED_TASKS if games is None else games
    draw = _shuffles if by_worker else _draws
    tasks = {seed: draw(num_tasks, count, seed + RELEASED_OFFSET) for seed in RELEASED_SEEDS}
    return Plan("released", tasks)


def _shuffles(num_tasks: int, count: int, seed: int) -> Sequence[int]:
    """Return tasks in turn from one shuffle per environment, which repeats at its end."""
    workers = range(RELEASED_ENVIRONMENTS)
    orders = [np.random.RandomState(seed + worker).permutation(num_tasks) for worker in workers]
    return np.resize(np.stack(orders, axis=1), count).tolist()  # the shuffles repeat


def _draws(num_tasks: int, count: int, seed: int) -> Sequence[int]:
    """Return tasks drawn without replacement, as many at a time as there are environments."""
    rng = np.random.RandomState(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        size = min(RELEASED_ENVIRONMENTS, num_tasks)
        drawn += rng.choice(num_tasks, size, replace=False).tolist()
    return drawn[:count]
