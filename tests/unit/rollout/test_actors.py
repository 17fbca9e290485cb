"""Groups on actors: an actor plays the next group however the last one ended. No Ray."""

import asyncio
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS
from hgpo_rllib.rollout import actors
from hgpo_rllib.rollout.actors import RunnerActors
from hgpo_rllib.rollout.group import Group, PlayedGroup

pytestmark = pytest.mark.timeout(10, func_only=True)
GROUP = Group("train", 0, "0/train/0", 2, 1.0)
PLAYED = PlayedGroup([], Counter(env_errors=1))


@pytest.fixture(autouse=True)
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the cancelled calls; without Ray, `ray.cancel` would start it in a failing test."""
    calls: list[Any] = []
    monkeypatch.setattr(ray, "cancel", calls.append)
    return calls


class Actor:
    """An actor whose groups end when the test sets their results."""

    def __init__(self) -> None:
        self.calls: list[Future[PlayedGroup]] = []
        self.arguments: list[tuple[Any, ...]] = []
        self.play_group = SimpleNamespace(remote=self.remote)

    def remote(self, *arguments: Any) -> Any:
        self.arguments.append(arguments)
        call: Future[PlayedGroup] = Future()
        self.calls.append(call)
        return SimpleNamespace(future=lambda: call)


async def begin(runners: RunnerActors) -> "asyncio.Task[PlayedGroup]":
    """Start to play a group; return the task once the call was made."""
    playing = asyncio.create_task(runners.play(lambda: STARTING_WEIGHTS, GROUP))
    await asyncio.sleep(0)
    return playing


def runners_of(*actors: Actor, max_outage_s: float = 60) -> RunnerActors:
    """Return runners of actors that play one group at a time each."""
    replicas: Any = SimpleNamespace(max_outage_s=max_outage_s)
    handles: Any = actors
    return RunnerActors(handles, replicas, GROUP.size, GROUP.size * len(actors))


async def test_groups_wait_for_an_actor() -> None:
    actor = Actor()
    runners = runners_of(actor)
    first, second = await begin(runners), await begin(runners)
    assert len(actor.calls) == 1
    actor.calls[0].set_result(PLAYED)
    assert await first == PLAYED
    await asyncio.sleep(0)
    actor.calls[1].set_result(PLAYED)
    assert await second == PLAYED


async def test_actors_share_the_limit_of_episodes() -> None:
    """Of ten episodes, each of two actors plays at most five: two groups of two."""
    both = Actor(), Actor()
    replicas: Any = SimpleNamespace(max_outage_s=60)
    handles: Any = both
    runners = RunnerActors(handles, replicas, GROUP.size, 10)
    playing = [await begin(runners) for _ in range(5)]
    assert [actor.arguments for actor in both] == [[(GROUP, STARTING_WEIGHTS, 5)] * 2] * 2
    both[1].calls[0].set_result(PLAYED)
    while len(both[1].calls) < 3:
        await asyncio.sleep(0.001)
    for call in [*both[0].calls, *both[1].calls[1:]]:
        call.set_result(PLAYED)
    assert await asyncio.gather(*playing) == [PLAYED] * 5


async def test_an_actor_whose_group_was_cancelled_plays_the_next_one(cancelled: list[Any]) -> None:
    """An actor is free after its group was cancelled, as when an algorithm is restored."""
    actor = Actor()
    runners = runners_of(actor)
    playing = await begin(runners)
    playing.cancel()
    await asyncio.wait({playing})
    assert len(cancelled) == 1
    again = await begin(runners)
    actor.calls[1].set_result(PLAYED)
    assert await again == PLAYED


async def test_an_actor_whose_group_failed_plays_the_next_one() -> None:
    """The group's error is raised, and the actor plays the next group."""
    actor = Actor()
    runners = runners_of(actor)
    playing = await begin(runners)
    cause = RunStoppedError("no replica answers")
    actor.calls[0].set_exception(RayTaskError("play_group", "trace", cause))
    with pytest.raises(RunStoppedError, match="no replica answers"):
        await playing
    again = await begin(runners)
    actor.calls[1].set_result(PLAYED)
    assert await again == PLAYED


@pytest.mark.parametrize(
    "lost",
    [RayActorError(), OutOfMemoryError("killed"), ObjectLostError("00" * 28, None, "call")],
)
async def test_the_group_of_a_lost_actor_is_played_again(
    monkeypatch: pytest.MonkeyPatch, lost: Exception
) -> None:
    """The group is retried until all actors have been lost for longer than `max_outage_s`."""
    monkeypatch.setattr(actors, "RETRY_INTERVAL_S", 0.0)
    actor = Actor()
    playing = await begin(runners_of(actor))
    actor.calls[0].set_exception(lost)
    while len(actor.calls) < 2:
        await asyncio.sleep(0.001)
    actor.calls[1].set_result(PLAYED)
    assert await playing == PLAYED

    actor = Actor()
    playing = await begin(runners_of(actor, max_outage_s=0.01))
    actor.calls[0].set_exception(lost)
    while len(actor.calls) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    actor.calls[1].set_exception(lost)
    with pytest.raises(RunStoppedError, match=r"policy_server\.max_outage_s"):
        await playing


async def test_an_actor_that_plays_a_long_group_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time limit starts again if an actor that was lost plays for a while and is lost again."""
    monkeypatch.setattr(actors, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(actors, "POLL_INTERVAL_S", 0.001)
    actor = Actor()
    runners = runners_of(actor, max_outage_s=0.05)
    outages_logged = asyncio.Event()

    async def any_running() -> None:
        outages_logged.set()

    monkeypatch.setattr(runners._replicas, "any_running", any_running, raising=False)
    playing = await begin(runners)
    actor.calls[0].set_exception(RayActorError())
    while len(actor.calls) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    actor.calls[1].set_exception(RayActorError())
    while len(actor.calls) < 3 and not playing.done():
        await asyncio.sleep(0.001)
    assert not playing.done(), playing.result()
    actor.calls[2].set_result(PLAYED)
    assert await playing == PLAYED
    assert outages_logged.is_set(), "this process logs outages of the policy server"


async def test_a_lost_actor_does_not_end_the_run_while_another_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run continues even if the other actor's group takes longer than `max_outage_s`."""
    monkeypatch.setattr(actors, "RETRY_INTERVAL_S", 0.0)
    lost, slow = Actor(), Actor()
    runners = runners_of(lost, slow, max_outage_s=0.01)
    first, second = await begin(runners), await begin(runners)
    for call in range(3):
        while len(lost.calls) <= call:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        lost.calls[call].set_exception(RayActorError())
    slow.calls[0].set_result(PLAYED)
    assert await second == PLAYED
    while len(slow.calls) < 2 and len(lost.calls) < 4:
        await asyncio.sleep(0.001)
    (slow.calls[1] if len(slow.calls) > 1 else lost.calls[3]).set_result(PLAYED)
    assert await first == PLAYED


async def test_an_actor_that_plays_again_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that was lost and is back counts as available when another one is lost."""
    monkeypatch.setattr(actors, "RETRY_INTERVAL_S", 0.0)
    back, lost = Actor(), Actor()
    runners = runners_of(back, lost, max_outage_s=0.01)
    first, second = await begin(runners), await begin(runners)
    back.calls[0].set_exception(RayActorError())
    while len(back.calls) < 2:
        await asyncio.sleep(0.001)
    back.calls[1].set_result(PLAYED)
    assert await first == PLAYED
    third = await begin(runners)  # `back` plays it until the end of the test
    for call in range(2):
        while len(lost.calls) <= call:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        lost.calls[call].set_exception(RayActorError())
    while len(lost.calls) < 3:
        await asyncio.sleep(0.001)
    lost.calls[2].set_result(PLAYED)
    back.calls[2].set_result(PLAYED)
    assert await second == await third == PLAYED


async def test_an_outage_that_ended_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit starts again with each outage."""
    monkeypatch.setattr(actors, "RETRY_INTERVAL_S", 0.0)
    actor = Actor()
    runners = runners_of(actor, max_outage_s=0.01)
    for call in (0, 2):
        playing = await begin(runners)
        actor.calls[call].set_exception(RayActorError())
        while len(actor.calls) < call + 2:
            await asyncio.sleep(0.001)
        actor.calls[call + 1].set_result(PLAYED)
        assert await playing == PLAYED
        await asyncio.sleep(0.02)
