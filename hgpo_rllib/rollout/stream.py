"""Groups of training rollouts in progress, by number."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from itertools import count, islice
from typing import Any, NamedTuple

from hgpo_rllib.rollout.group import PlayedGroup


class TimedGroup(NamedTuple):
    """A group that was played."""

    number: int
    played: PlayedGroup
    started: float
    """Time as of `time.perf_counter`."""
    ended: float


class GroupStream:
    """Plays groups in the order of their numbers, until they are taken.

    The number of a group, from 0, determines its task and its seeds. Call all methods on one event
    loop.
    """

    def __init__(self, play: Callable[[int], Coroutine[Any, Any, PlayedGroup]]):
        """`play` plays the group with a number."""
        self._play = play
        self._tasks: dict[int, asyncio.Task[TimedGroup]] = {}
        self.position = 0
        """First number that was not taken yet."""
        self.taken: set[int] = set()
        """Numbers after `position` that were taken."""

    def start(self, total: int) -> None:
        """Start groups until `total` of them are in progress or wait to be taken."""
        numbers = (n for n in count(self.position) if not (n in self.taken or n in self._tasks))
        for number in islice(numbers, max(0, total - len(self._tasks))):
            self._tasks[number] = asyncio.create_task(self._timed(number))

    async def take(self, size: int, in_order: bool) -> list[TimedGroup]:
        """Wait for `size` of the started groups and return them, ordered by number.

        They are those with the smallest numbers if `in_order`, otherwise those that finish first.

        Raises:
            RunStoppedError: a group could not be played; all others are cancelled.
        """
        candidates = sorted(self._tasks)[: size if in_order else None]
        while True:
            done = [number for number in candidates if self._tasks[number].done()]
            for number in done:
                if error := self._tasks[number].exception():
                    await self.restart(self.position, self.taken)
                    raise error
            if len(done) >= size:
                break
            unfinished = [self._tasks[number] for number in candidates if number not in done]
            await asyncio.wait(unfinished, return_when=asyncio.FIRST_COMPLETED)
        groups = [self._tasks.pop(number).result() for number in done[:size]]
        self.taken.update(group.number for group in groups)
        while self.position in self.taken:
            self.taken.remove(self.position)
            self.position += 1
        return groups

    async def restart(self, position: int, taken: Iterable[int]) -> None:
        """Cancel all groups; the next ones follow `position` and leave out `taken`."""
        cancelled, self._tasks = list(self._tasks.values()), {}
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        self.position, self.taken = position, set(taken)

    async def _timed(self, number: int) -> TimedGroup:
        started = time.perf_counter()
        played = await self._play(number)
        return TimedGroup(number, played, started, time.perf_counter())
