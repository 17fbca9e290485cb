"""The same work on many games, in as many processes as that is worth."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from env_wrappers.processes import process_pool

Item = TypeVar("Item")
Result = TypeVar("Result")

_GAMES_PER_WORKER = 8  # fewer are done before another process has started


def workers_for(games: int) -> int:
    """Return the number of processes for so many games on this machine."""
    return max(1, min(os.cpu_count() or 1, games // _GAMES_PER_WORKER))


def map_games(
    work: Callable[[Item], Result], games: Sequence[Item], workers: int
) -> Iterator[Result]:
    """Yield the results in the order of the games; with one worker, in this process."""
    if workers <= 1:
        yield from map(work, games)
        return
    with process_pool(workers) as pool:
        yield from pool.map(work, games, chunksize=4)
