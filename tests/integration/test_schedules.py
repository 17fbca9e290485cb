"""Rollouts during updates: the weights that sample them, and the groups that are used."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import pytest

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.trajectory import have_equal_returns
from tests.integration.weights import responses, sync
from tests.processes import wait_until

pytestmark = pytest.mark.integration


@contextmanager
def changed(algorithm: HGPO, **settings: Any) -> Iterator[HGPOEnvRunner]:
    """Yield the algorithm's runner with other settings; discard what it plays ahead at the end."""
    sync(algorithm)
    before, runner = algorithm.config, algorithm.env_runner
    algorithm.config = runner.config = before.copy(copy_frozen=False).training(**settings)
    try:
        yield runner
    finally:
        algorithm.config = runner.config = before
        position = runner.get_state()["task_position"]
        runner.set_state({"task_position": position})


def test_rollouts_go_on_while_the_learner_updates(algorithm: HGPO) -> None:
    """One step off: from the second iteration on, some steps are one version old."""
    with changed(algorithm, schedule="one_step_off") as runner:
        before, count = runner.get_state()["task_position"], algorithm.config.groups_per_iteration
        for iteration in (1, 2):
            algorithm.train()
            assert runner.get_state()["task_position"] == before + iteration * count
            assert (algorithm.last_iteration.stale_rate > 0) is (iteration == 2)
    assert runner.prompts_in_flight() == 0
    algorithm.train()
    assert algorithm.last_iteration.stale_rate == 0
    assert runner.get_state()["task_position"] == before + 3 * count


def test_new_weights_reach_a_rollout_under_way(algorithm: HGPO) -> None:
    """A running rollout switches from the old weights to the new ones, and never back."""
    sync(algorithm)
    runner = algorithm.env_runner
    old = runner.weights.version
    position = runner.get_state()["task_position"]
    runner.sample_ahead(8)
    deadline = time.monotonic() + 60
    while runner.prompts_in_flight() < 8 * algorithm.config.group_size:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    while runner.prompts_in_flight() == 8 * algorithm.config.group_size:
        assert time.monotonic() < deadline
        time.sleep(0.001)  # until some have a response, so that the engine has all first turns
    algorithm.learner_group._learner.policy.mark_weights_changed()
    sync(algorithm)
    new = runner.weights.version
    assert new != old
    played = runner.sample(num_groups=8).trajectories
    versions = [[turn.weight_version for turn in trajectory.turns] for trajectory in played]
    assert {drawn[0] for drawn in versions} == {old}
    assert new in {version for drawn in versions for version in drawn}
    for drawn in versions:
        assert drawn == sorted(drawn, key=[old, new].index)
    runner.set_state({"task_position": position})


def test_groups_without_a_signal_are_replaced(algorithm: HGPO) -> None:
    """Groups are replaced until all have different returns or the budget is used up."""
    with changed(algorithm, max_replaced_groups=8) as runner:
        position = runner.get_state()["task_position"]
        played = runner.sample(num_groups=4)
        replaced = played.failures["replaced_groups"]
        assert runner.get_state()["task_position"] == position + 4 + replaced
    groups = [list(group) for _, group in groupby(played.trajectories, key=lambda t: t.group)]
    assert len(groups) == 4
    assert replaced == 8 or not any(map(have_equal_returns, groups))


def finish_groups(runner: HGPOEnvRunner) -> None:
    """Wait for the groups in progress."""
    wait_until(lambda: all(task.done() for task in runner._stream._tasks.values()), 60)


def test_no_staleness_is_the_synchronous_schedule(algorithm: HGPO) -> None:
    """Without staleness, the groups and their responses are those of the synchronous schedule."""
    with changed(algorithm, schedule="asynchronous", max_staleness=0) as runner:
        state = runner.get_state()
        once = responses(runner.sample(num_groups=3).trajectories)
        assert runner.prompts_in_flight() == 0
    runner.set_state(state)
    assert responses(runner.sample(num_groups=3).trajectories) == once


def test_asynchronous_rollouts_go_on_while_the_learner_updates(algorithm: HGPO) -> None:
    """No response is older than the limit, and each group is used or counted as stale."""
    count, versions, used, stale = algorithm.config.groups_per_iteration, [], [], 0
    with changed(algorithm, schedule="asynchronous", max_staleness=1) as runner:
        first = runner.get_state()["task_position"]
        for iteration in range(4):
            versions.append(sync(algorithm).version)
            algorithm.train()
            trajectories = algorithm.last_iteration.scored.trajectories
            drawn = {turn.weight_version for t in trajectories for turn in t.turns}
            assert drawn <= set(versions[-2:])
            assert (algorithm.last_iteration.stale_rate > 0) is (iteration > 0)
            groups = {trajectory.group for trajectory in trajectories}
            assert len(groups) == count
            used += [int(group.rpartition("/")[2]) for group in groups]
            stale += algorithm.last_iteration.failures["stale_groups"]
            # A group that took longer than the next iteration would be stale.
            finish_groups(runner)
        state = runner.get_state()
    taken = {*range(first, state["task_position"]), *state["taken_after"]}
    assert set(used) <= taken
    assert len(set(used)) == len(used) == len(taken) - stale


def test_groups_that_are_too_old_are_not_used(algorithm: HGPO) -> None:
    """Stale groups are counted and replaced by new ones."""
    with changed(algorithm, schedule="asynchronous", max_staleness=1) as runner:
        runner.sample_ahead(3)
        finish_groups(runner)
        for _ in range(2):
            algorithm.learner_group._learner.policy.mark_weights_changed()
            sync(algorithm)
        old = runner.get_state()["task_position"]
        played = runner.sample(num_groups=2)
        assert played.failures["stale_groups"] == 3
        numbers = {int(t.group.rpartition("/")[2]) for t in played.trajectories}
        assert len(numbers) == 2
        assert min(numbers) >= old + 3
        assert {turn.weight_version for t in played.trajectories for turn in t.turns} == {
            runner.weights.version
        }
