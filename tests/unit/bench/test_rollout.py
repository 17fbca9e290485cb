"""The rollout bench: its lock-step driver on a small environment, and its numbers."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from hgpo_rllib.agent import AgentFactory
from hgpo_rllib.bench import rollout as bench
from hgpo_rllib.bench.rollout import (
    compare_whole_episodes,
    describe_episodes,
    describe_requests,
    play_in_lock_step,
)
from hgpo_rllib.config import load_config, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.policy_server.types import Generation
from hgpo_rllib.rollout.policy_agent import Policy, PolicyAgent
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.warmstart.tokenizer import train_tokenizer
from tests.unit.rollout.harness import CountingEnv, RolloutHarness


@pytest.fixture
def harness() -> Iterator[RolloutHarness]:
    """Yield a rollout in which nothing fails."""
    harness = RolloutHarness(train_tokenizer(["at 1 of 2, wait. count"] * 20, [], 320))
    yield harness
    harness.thread.close()


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("num_replicas", 2, {}),
        ("max_replicas", 2, {}),
        ("memory_utilization", 0.5, {"replica_gpus": 1}),
    ],
)
def test_what_plain_vllm_cannot_share(name: str, value: float, others: dict[str, Any]) -> None:
    server = parse_config({"policy_server": {name: value} | others}).policy_server
    with pytest.raises(ConfigError, match=f"policy_server.{name}: set it"):
        bench.check(server)
    bench.check(parse_config({"policy_server": {"memory_utilization": 0.4} | others}).policy_server)


def test_lock_step_requests_all_until_the_last_episode_ends(harness: RolloutHarness) -> None:
    """The result counts only the steps before the end of each episode."""
    envs = [harness.make() for _ in range(3)]
    tasks = [2, 5, 3]
    work = play_in_lock_step(envs, tasks, "key", harness.agent_factory())
    assert asyncio.run(work) == sum(tasks)
    assert len(harness.policy.asked) == 3 * 5
    assert [env.actions for env in envs] == [["wait"] * task for task in tasks]
    seeds = [prompt.seed for prompt in harness.policy.asked]
    assert len(set(seeds)) == len(seeds)
    shown = harness.tokenizer.decode(harness.policy.asked[-3].token_ids)
    assert "at 2 of 2" in shown, "what is over is asked again about its last observation"


class Runner:
    """A stand-in for the env runner whose agents sample only admissible actions."""

    replicas = None

    def __init__(self, harness: RolloutHarness):
        self.harness, self.renderer = harness, harness.renderer

    def num_tasks(self, split: str) -> int:
        return 2

    def sampling(self, temperature: float) -> None: ...

    def restrictions(self, grammar: str, ids: list[int]) -> None: ...

    def agent_factory(self, policy: Policy) -> AgentFactory:
        grammars: Any = self
        return partial(PolicyAgent, policy, self.renderer, grammars=grammars)

    def play(self, split: str, tasks: list[int], size: int, *_: Any) -> list[Trajectory]:
        played = self.harness.play([1 + task for task in tasks], size)
        self.harness.policy.asked.clear()
        return played


class FromOne(CountingEnv):
    """An environment whose first task has one step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=1 + (seed or 0))


def test_lock_step_has_the_agents_of_the_rollout(
    harness: RolloutHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents in lock step are restricted to admissible actions, too."""
    monkeypatch.setattr(bench, "make_environment", lambda *_: FromOne(lambda *_: None))
    monkeypatch.setattr(bench, "PolicyClient", lambda *_: harness.policy)
    config = load_config(None, ["rollout.group_size=2"])
    runner: Any = Runner(harness)
    (row,) = compare_whole_episodes(config, runner, repeats=1)
    assert (row["episodes"], row["steps"], row["longest"]) == (4, 6, 2)
    assert len(harness.policy.asked) == 4 * 2
    assert all(prompt.grammar for prompt in harness.policy.asked)


def test_requests_are_compared_by_tokens_and_time() -> None:
    answer = Generation(np.zeros(20, np.int32), np.zeros(20, np.float32), "w:1", "stop", 0.12)
    row = describe_requests((0.5, 100), 1.0, [(answer, 0.15)] * 10)
    assert row["tokens"] == row["vllm_tokens_per_s"] == row["serve_tokens_per_s"] == 200
    assert (row["ratio"], row["added_ms_a_request"]) == (1.0, 50)
    assert (row["latency_ms"], row["engine_ms"]) == (150, 120)


def test_episodes_are_compared_by_steps_and_time(harness: RolloutHarness) -> None:
    played = harness.play([3, 1], size=2)
    row = describe_episodes(played, seconds=2.0, lock_steps_per_s=1.0)
    assert (row["episodes"], row["steps"], row["longest"]) == (4, 8, 3)
    assert row["ratio"] == row["steps_per_s"] == 4
