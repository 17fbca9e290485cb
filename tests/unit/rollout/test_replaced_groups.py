"""Dynamic sampling: which groups a rollout uses, and which groups a resumed run plays."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.rollout.group import PlayedGroup
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.stream import GroupStream
from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.rollout.trajectory import Step, have_equal_returns
from hgpo_rllib.run.metrics import rollout_metrics
from tests.unit.rollout.episodes import trajectory

EQUAL = {2, 3, 5, 6, 7}  # numbers of the groups in which no episode is won


async def play(number: int) -> PlayedGroup:
    """Return a group of two members; the first one wins unless `number` is in `EQUAL`."""
    await asyncio.sleep(random.random() / 1000)
    name = f"{number:02d}"
    members = [trajectory(name, 1 if number in EQUAL else 0), trajectory(name, 1)]
    return PlayedGroup(members, Counter(env_errors=number))


@contextmanager
def runner_of(**settings: Any) -> Iterator[HGPOEnvRunner]:
    """Yield a runner that plays these groups instead of episodes."""
    runner = object.__new__(HGPOEnvRunner)
    runner.config = SimpleNamespace(
        **{"schedule": "synchronous", "max_staleness": 1, "max_replaced_groups": 0} | settings
    )
    runner._stream, runner._finished = GroupStream(play), []
    runner._tasks = TaskOrder(1, seed=0)
    runner._versions = ["w:0", "w:1", "w:2"]
    with start_blocking_portal() as runner._loop:
        yield runner


def used_groups(runner: HGPOEnvRunner, count: int) -> tuple[list[int], dict[str, int]]:
    """Sample groups; return the numbers of those used, and the nonzero failure counts."""
    played = runner.sample(num_groups=count)
    used = sorted({int(t.group) for t in played.trajectories})
    return used, {name: number for name, number in played.failures.items() if number}


def test_groups_with_equal_returns_are_replaced_by_the_next_ones() -> None:
    """Groups are replaced up to the budget of an iteration; their failures count as well."""
    with runner_of(max_replaced_groups=3) as runner:
        assert used_groups(runner, 4) == ([0, 1, 4, 6], {"env_errors": 21, "replaced_groups": 3})
        assert used_groups(runner, 2) == ([8, 9], {"env_errors": 24, "replaced_groups": 1})
    with runner_of() as runner:
        assert used_groups(runner, 4) == ([0, 1, 2, 3], {"env_errors": 6})


@given(
    budget=st.integers(0, 4),
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    resumed=st.integers(1, 3),
)
def test_a_resumed_run_uses_the_same_groups(budget: int, counts: list[int], resumed: int) -> None:
    with runner_of(max_replaced_groups=budget) as runner:
        whole = [used_groups(runner, count) for count in counts]
    with runner_of(max_replaced_groups=budget) as runner:
        parts = [used_groups(runner, count) for count in counts[:resumed]]
        state = runner.get_state()
    with runner_of(max_replaced_groups=budget) as runner:
        runner.set_state(state)
        assert parts + [used_groups(runner, count) for count in counts[resumed:]] == whole


def test_the_time_of_replaced_groups_counts() -> None:
    """`seconds` includes the time of the first group even if that group is replaced."""
    with runner_of(max_replaced_groups=9) as runner:
        runner.set_state({"task_position": 2})
        moments: list[float] = []
        take = runner._stream.take

        async def timed(*arguments: Any) -> Any:
            groups = await take(*arguments)
            moments.extend(moment for group in groups for moment in (group.started, group.ended))
            return groups

        runner._stream.take = timed  # type: ignore[method-assign]
        assert runner.sample(num_groups=1).seconds == max(moments) - min(moments)
        assert len(moments) == 6


def test_asynchronous_rollouts_replace_groups_too() -> None:
    with runner_of(schedule="asynchronous", max_replaced_groups=9, max_staleness=2) as runner:
        used = [number for _ in range(3) for number in used_groups(runner, 2)[0]]
    assert not EQUAL & set(used)
    assert len(set(used)) == 6


def test_a_response_is_as_old_as_its_first_token() -> None:
    """The first token's weight version decides, even if newer weights sampled later tokens."""

    async def mixed(number: int) -> PlayedGroup:
        played = await play(number)
        versions = (("w:0" if number < 4 else "w:1", 1), ("w:2", 1))
        members = [
            replace(member, steps=[with_versions(step, versions) for step in member.steps])
            for member in played.trajectories
        ]
        return played._replace(trajectories=members)

    with runner_of(schedule="asynchronous") as runner:
        runner._stream = GroupStream(mixed)
        used, failures = used_groups(runner, 2)
        assert min(used) >= 4
        assert failures["stale_groups"] >= 2


def with_versions(step: Step, versions: tuple[tuple[str, int], ...]) -> Step:
    """Return a step whose response was sampled with these weights."""
    turn = replace(step.turn, weight_version=versions[-1][0], weight_versions=versions)
    return replace(step, turn=turn)


def test_lost_groups_use_up_the_budget() -> None:
    """A rollout whose groups are all lost uses up the budget and then ends the run."""

    async def lose(number: int) -> PlayedGroup:
        return PlayedGroup([], Counter(lost_groups=1))

    with runner_of(max_replaced_groups=5) as runner:
        runner._stream = GroupStream(lose)
        with pytest.raises(RunStoppedError, match="lost_groups 2"):
            runner.sample(num_groups=2)
        assert runner._stream.position == 7


def test_equal_returns() -> None:
    """The returns of whole episodes are compared; the lengths of episodes do not matter."""
    short, long = trajectory("a", 1), trajectory("a", 2)
    assert have_equal_returns([short, long])
    assert not have_equal_returns([short, long, trajectory("a", 0)])
    assert have_equal_returns([])
    steps = [replace(short.steps[0], reward=0.1)]
    assert not have_equal_returns([short, replace(short, steps=steps)])
    parts, whole = (
        replace(short, steps=[replace(short.steps[0], reward=reward) for reward in rewards])
        for rewards in ((0.1, 0.2), (0.3,))
    )
    assert parts.episode_return != whole.episode_return
    assert have_equal_returns([parts, whole])


def test_the_share_of_groups_with_equal_returns() -> None:
    """Each group counts once, whatever its number of members."""
    groups = [asyncio.run(play(number)).trajectories for number in (0, 2, 3)]
    played = [*groups[0], trajectory("00", 2), *groups[1], *groups[2]]
    assert rollout_metrics(played)["equal_return_rate"] == pytest.approx(2 / 3)


def test_a_group_of_one_has_nothing_to_compare() -> None:
    settings = ["rollout.group_size=1", "algorithm.estimator=reinforce"]
    with pytest.raises(ConfigError, match=r"max_replaced_groups=2 compares .*=0"):
        load_config(None, [*settings, "rollout.max_replaced_groups=2"])
    load_config(None, settings)


def test_over_sampling() -> None:
    """Asynchronous rollouts start more groups than they need and take those that finish first."""
    started: list[int] = []

    async def counted(number: int) -> PlayedGroup:
        started.append(number)
        if number == 0:
            await asyncio.sleep(5)
        return await play(number)

    with runner_of(schedule="asynchronous", max_staleness=2) as runner:
        runner._stream = GroupStream(counted)
        for total in (9, 12):
            used, _ = used_groups(runner, 3)
            assert len(used) == 3
            assert 0 not in used
            assert sorted(started) == list(range(total))
