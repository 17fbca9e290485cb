"""Groups in progress: which are taken, in which order, and which a restart plays again."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.rollout import stream as stream_module
from hgpo_rllib.rollout.group import PlayedGroup
from hgpo_rllib.rollout.stream import GroupStream


class Groups:
    """Groups that end when a test calls `end`."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.cancelled: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.broken: set[int] = set()
        self.stream = GroupStream(self.play)

    async def play(self, number: int) -> PlayedGroup:
        self.started.append(number)
        self.ends[number] = asyncio.Event()
        try:
            await self.ends[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if number in self.broken:
            raise RunStoppedError(f"group {number}")
        return PlayedGroup([], Counter({"lost_groups": number}))

    async def start(self, total: int) -> None:
        self.stream.start(total)
        await asyncio.sleep(0)

    async def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends[number].set()
        for _ in range(3):
            await asyncio.sleep(0)

    async def take(self, size: int, in_order: bool) -> list[int]:
        taken = await asyncio.wait_for(self.stream.take(size, in_order), 10)
        for group in taken:
            assert group.played == ([], Counter({"lost_groups": group.number}))
            assert group.started <= group.ended
        return [group.number for group in taken]


async def test_in_order_waits_for_the_smallest_numbers() -> None:
    groups = Groups()
    await groups.start(4)
    await groups.end(2, 3)
    taking = asyncio.create_task(groups.take(2, in_order=True))
    await asyncio.sleep(0.01)
    assert not taking.done()
    await groups.end(1, 0)
    assert await taking == [0, 1]
    assert await groups.take(2, in_order=True) == [2, 3]
    assert (groups.stream.position, groups.stream.taken) == (4, set())


async def test_otherwise_the_groups_that_finish_first_are_taken() -> None:
    """Slow groups are taken later, and new groups start beside them."""
    groups = Groups()
    await groups.start(4)
    await groups.end(3, 1)
    assert await groups.take(2, in_order=False) == [1, 3]
    assert (groups.stream.position, groups.stream.taken) == (0, {1, 3})
    await groups.start(4)
    assert groups.started == [0, 1, 2, 3, 4, 5]
    await groups.end(5, 0)
    assert await groups.take(2, in_order=False) == [0, 5]
    assert (groups.stream.position, groups.stream.taken) == (2, {3, 5})


async def test_a_restart_cancels_and_plays_again_what_was_not_taken() -> None:
    groups = Groups()
    await groups.start(4)
    await groups.end(1, 3)
    assert await groups.take(1, in_order=False) == [1]
    state = groups.stream.position, set(groups.stream.taken)
    await groups.stream.restart(*state)
    assert sorted(groups.cancelled) == [0, 2]
    groups.started.clear()
    await groups.start(3)
    assert groups.started == [0, 2, 3]


async def test_a_failure_cancels_the_other_groups() -> None:
    groups = Groups()
    groups.broken = {1}
    await groups.start(3)
    await groups.end(1)
    with pytest.raises(RunStoppedError, match="group 1"):
        await groups.take(3, in_order=True)
    assert sorted(groups.cancelled) == [0, 2]


async def test_a_group_is_timed_from_its_start_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1.0]
    fake = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(stream_module, "time", fake)

    async def play(number: int) -> PlayedGroup:
        clock[0] += 3.0
        return PlayedGroup([], Counter())

    stream = GroupStream(play)
    stream.start(1)
    (group,) = await stream.take(1, in_order=True)
    assert (group.started, group.ended) == (1.0, 4.0)


async def test_a_failure_stops_the_run_also_beside_enough_other_groups() -> None:
    """The failed group need not be one of those to take; what was taken stays taken."""
    groups = Groups()
    groups.broken = {2}
    await groups.start(3)
    await groups.end(1)
    assert await groups.take(1, in_order=False) == [1]
    await groups.end(0, 2)
    with pytest.raises(RunStoppedError, match="group 2"):
        await groups.take(1, in_order=False)
    assert (groups.stream.position, groups.stream.taken) == (0, {1})


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    ahead=st.integers(0, 4),
    random=st.randoms(use_true_random=False),
)
def test_every_number_is_taken_once_also_across_restarts(
    sizes: list[int], ahead: int, random: Any
) -> None:
    async def test() -> None:
        groups, taken = Groups(), list[int]()
        for size in sizes:
            await groups.start(size + ahead)
            waiting = [number for number in groups.ends if not groups.ends[number].is_set()]
            random.shuffle(waiting)
            await groups.end(*waiting[: max(size, random.randint(0, len(waiting)))])
            taken += await groups.take(size, in_order=False)
            assert {*range(groups.stream.position), *groups.stream.taken} == set(taken)
            if random.random() < 0.3:
                state = groups.stream.position, set(groups.stream.taken)
                groups = Groups()
                await groups.stream.restart(*state)
        assert len(set(taken)) == len(taken) == sum(sizes)

    asyncio.run(test())
