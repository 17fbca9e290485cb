"""Env runner actors play the same episodes as the main process, even if one is lost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from env_wrappers.errors import DataError
from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.bench import scale
from hgpo_rllib.bench.replay import replaying
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import Generation
from hgpo_rllib.rollout.actors import runner_actors
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from tests.integration.weights import responses, sync
from tests.processes import wait_until

pytestmark = pytest.mark.integration
TASKS = [3, 0, 5, 1, 2, 4, 0, 3]


@contextmanager
def started(algorithm: HGPO, count: int, **settings: Any) -> Iterator[EnvRunnerGroup]:
    """Yield env runners of an algorithm that shares the policy server and its weights."""
    config = algorithm.config.copy(copy_frozen=False).training(constrain_actions=False, **settings)
    config.env_runners(num_env_runners=count, num_cpus_per_env_runner=0.1)
    group = EnvRunnerGroup(env_creator=algorithm.env_creator, config=config)
    local = group.local_env_runner
    try:
        local.actors = runner_actors(group)
        sync(algorithm, group)
        yield group
    finally:
        local.stop()
        group.stop()


@pytest.fixture(scope="module")
def two(algorithm: HGPO) -> Iterator[EnvRunnerGroup]:
    """Yield a group with two env runner actors."""
    with started(algorithm, 2) as group:
        yield group


def prompts_of_actors(runner: HGPOEnvRunner) -> list[int]:
    return ray.get([actor.prompts_in_flight.remote() for actor in runner.actors])


def test_actors_play_the_episodes_of_the_main_process(algorithm: HGPO, two: EnvRunnerGroup) -> None:
    """Actors give the same responses in training groups and in evaluations."""
    sync(algorithm, two)
    for split, tasks, size, temperature in (("train", TASKS, 4, 1.0), ("valid_seen", [2, 0], 1, 0)):
        alone = algorithm.env_runner.play(split, tasks, size, temperature)
        together = two.local_env_runner.play(split, tasks, size, temperature)
        assert responses(together) == responses(alone)


def test_every_actor_plays(two: EnvRunnerGroup) -> None:
    runner = two.local_env_runner
    position = runner.get_state()["task_position"]
    runner.sample_ahead(len(TASKS))
    wait_until(lambda: all(prompts_of_actors(runner)), 60)
    assert runner.prompts_in_flight() > 0
    assert len(runner.sample(num_groups=len(TASKS)).trajectories) == 4 * len(TASKS)
    assert runner.get_state()["task_position"] == position + len(TASKS)
    assert runner.prompts_in_flight() == 0


def test_giving_up_a_rollout_stops_the_actors(two: EnvRunnerGroup) -> None:
    runner = two.local_env_runner
    position = runner.get_state()["task_position"]
    runner.sample_ahead(len(TASKS))
    wait_until(lambda: all(prompts_of_actors(runner)), 60)
    runner.set_state({"task_position": position})
    wait_until(lambda: not any(prompts_of_actors(runner)), 60)
    time.sleep(0.2)
    assert not any(prompts_of_actors(runner)), "a group that waited was started"


def test_new_weights_reach_the_actors_while_they_play(algorithm: HGPO, two: EnvRunnerGroup) -> None:
    sync(algorithm, two)
    runner = two.local_env_runner
    old = runner.weights.version
    runner.sample_ahead(len(TASKS))
    wait_until(lambda: all(prompts_of_actors(runner)), 60)
    algorithm.learner_group._learner.policy.mark_weights_changed()
    sync(algorithm, two)
    new = runner.weights.version
    assert new != old
    versions = [
        [turn.weight_version for turn in trajectory.turns]
        for trajectory in runner.sample(num_groups=len(TASKS)).trajectories
    ]
    assert {version for drawn in versions for version in drawn} == {old, new}
    for drawn in versions:
        assert drawn == sorted(drawn, key=[old, new].index)


def test_groups_of_a_lost_actor_are_played_again(
    algorithm: HGPO, two: EnvRunnerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The groups of a lost actor are played again, and Ray restarts it."""
    sync(algorithm, two)
    sync_weights, runner = algorithm.env_runner_group.sync_weights, two.local_env_runner
    sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
    first = runner.get_state()["task_position"]
    count = len(TASKS)
    runner.sample_ahead(count)
    wait_until(lambda: all(prompts_of_actors(runner)), 60)
    ray.kill(runner.actors[1], no_restart=False)
    played = runner.sample(num_groups=count)
    assert caplog.text.count("lost an env runner") == 1
    assert len(played.trajectories) == 4 * count
    wait_until(lambda: ready(runner, 1), 60)
    runner.set_state({"task_position": first})
    again = runner.sample(num_groups=count)
    assert responses(again.trajectories) == responses(played.trajectories)
    runner.sample_ahead(count)
    wait_until(lambda: all(prompts_of_actors(runner)), 60)
    runner.sample(num_groups=count)


def ready(runner: HGPOEnvRunner, actor: int) -> bool:
    try:
        return ray.get(runner.actors[actor].ping.remote()) == "pong"
    except ray.exceptions.RayActorError:
        return False


class FailingRunner(HGPOEnvRunner):
    """Env runner of which the second actor does not start."""

    def __init__(self, **options: Any):
        if options["worker_index"] == 2:
            raise DataError("no games here")
        super().__init__(**options)


def test_an_env_runner_that_does_not_start(algorithm: HGPO) -> None:
    """It is an error; RLlib itself would go on without it."""
    config = algorithm.config.copy(copy_frozen=False)
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1)
    config.env_runner_cls = FailingRunner
    group = EnvRunnerGroup(env_creator=algorithm.env_creator, config=config)
    try:
        with pytest.raises(RunStoppedError, match="did not start: DataError: no games here"):
            runner_actors(group)
    finally:
        group.local_env_runner.stop()
        group.stop()


def test_a_rollout_without_actors_ends_in_one_line(algorithm: HGPO) -> None:
    with started(algorithm, 1, max_outage_s=3) as group:
        (actor,) = group.local_env_runner.actors
        ray.kill(actor)
        with pytest.raises(RunStoppedError, match="all env runners have been lost for 3 s"):
            group.local_env_runner.play("train", [0, 1], 4, 1.0)


@pytest.fixture(scope="module")
def recorded(algorithm: HGPO) -> list[Generation]:
    """Return recorded responses with a short latency."""
    played = algorithm.env_runner.play("train", [0, 1], 4, 1.0)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    return [Generation(t.response_ids, t.behavior_logp, "", "stop", 0.002) for t in turns]


@pytest.fixture(scope="module")
def replay(run_config: RunConfig, recorded: list[Generation]) -> Iterator[str]:
    """Yield the name of a Serve application that replays the recorded responses."""
    with replaying(run_config, recorded) as app:
        yield app


@pytest.mark.parametrize("count", [0, 1])
def test_bench_scale_replays_responses(
    run_config: RunConfig, recorded: list[Generation], replay: str, count: int
) -> None:
    """`hgpo bench scale` uses the runners and the policy server of training."""
    with scale.started(run_config, replay, count, 8) as runner:
        row, played = scale.measure_rollout(runner, 8)
        profile = runner.profile(lambda: scale.play(runner, 1))
    assert row["episodes"] == len(played) == 8
    assert row["steps"] == sum(map(len, played))
    possible = {tuple(response.token_ids.tolist()) for response in recorded}
    assert {tuple(turn.response_ids.tolist()) for t in played for turn in t.turns} <= possible
    parts = row["environments_ms"] + row["prompts_ms"] + row["orchestration_ms"]
    assert parts == pytest.approx(row["cpu_ms_per_step"])
    assert min(row["environments_ms"], row["prompts_ms"], row["orchestration_ms"]) > 0
    assert row["event_loop_ms"] + row["ray_threads_ms"] == pytest.approx(row["orchestration_ms"])
    assert "tottime" in profile
    assert "base_events.py" in profile
    inputs = scale.measure_input(run_config, played)
    assert inputs["steps"] == row["steps"]
    assert inputs["mini_batches"] == max(1, round(row["steps"] / 64))


def test_bench_scale_compares_the_schedules(
    run_config: RunConfig, replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "UPDATES", 1)
    rows = scale.compare_schedules(run_config, replay)
    compared = [(row["schedule"], row["max_staleness"]) for row in rows]
    assert compared == [*scale.SCHEDULES]
    assert rows[0]["update_s"] > 0
    assert rows[0]["stale_groups"] == rows[1]["stale_groups"] == 0
    for row in rows:
        assert row["iteration_s"] >= row["update_s"]
