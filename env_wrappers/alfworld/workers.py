"""Map a function over many games in parallel processes."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from env_wrappers.processes import process_pool

Item = TypeVar("Item")
Result = TypeVar("Result")

_GAMES_PER_WORKER = 8  # with fewer, starting a process takes longer


def workers_for(games: int) -> int:
    """Return the number of processes to use for this many games on this machine."""
    return max(1, min(os.cpu_count() or 1, games // _GAMES_PER_WORKER))


def map_games(
    work: Callable[[Item], Result], games: Sequence[Item], workers: int
) -> Iterator[Result]:
    """Yield results in the order of the games; one worker runs in this process."""
    if workers <= 1:
        yield from map(work, games)
        return
    with process_pool(workers) as pool:
        yield from pool.map(work, games, chunksize=4)
