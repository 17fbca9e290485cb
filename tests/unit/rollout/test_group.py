"""Groups of members: what they keep, what fails, and what is left then. No Ray, no engine."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Text
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import AgentFactory, TokenRenderer, response_seed
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import (
    FAILURES,
    Group,
    PlayedGroup,
    Rollout,
    gather,
    merge_groups,
    play_in_pool,
)
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

GOOD = "<think>.</think><action>wait</action>"
Fault = Callable[[int, int], None]  # task, step → an error, or a pause


class Counting(gym.Env):
    """Ends after as many steps as its task says; every step shows its number."""

    observation_space = action_space = Text(100)

    def __init__(self, fault: Fault):
        self.fault = fault
        self.actions: list[str] = []
        self.failed = self.closed = False

    def close(self) -> None:
        self.closed = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        assert not self.failed
        self.task, self.time = seed, 0
        self.actions.clear()
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.failed = True
        self.fault(self.task, self.time)
        self.failed = False
        self.actions.append(action)
        self.time += 1
        observation, info = self._see()
        return observation, float(self.time), self.time == self.task, False, info

    def _see(self) -> tuple[str, dict[str, Any]]:
        info = {"goal": "count", "admissible_actions": ["wait"], "won": self.time == self.task}
        return f"at {self.time} of {self.task}", info


class Scripted:
    """Answers every prompt as told, and remembers what it was asked."""

    def __init__(self, respond: Callable[[Prompt], Generation]):
        self.respond = respond
        self.asked: list[Prompt] = []

    async def generate(self, prompt: Prompt) -> Generation:
        self.asked.append(prompt)
        await asyncio.sleep(0)
        return self.respond(prompt)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A small one with the tags of the agent."""
    return train_tokenizer(["at 1 of 2, wait. count"] * 20, [], 320)


class Table:
    """A rollout with everything that a test may want to change."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.renderer = TokenRenderer(
            tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2),
        )
        self.thread = EnvThread(limit_s=60)
        self.envs: list[Counting] = []
        self.fault: Fault = lambda task, step: None
        self.slots = 100
        self.policy = Scripted(lambda prompt: self.response(GOOD))
        self.failures: Counter[str] = Counter()

    def response(self, text: str, finish_reason: str = "stop") -> Generation:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [self.tokenizer.eos_token_id] * (finish_reason == "stop")
        logp = -np.arange(len(ids), dtype=np.float32)
        return Generation(np.asarray(ids, np.int32), logp, "w:3", finish_reason, 0.1)

    def make(self) -> Counting:
        self.envs.append(Counting(lambda task, step: self.fault(task, step)))
        return self.envs[-1]

    def agent_factory(self) -> AgentFactory:
        return partial(PolicyAgent, self.policy, self.renderer)

    def play(self, tasks: list[int], size: int = 3) -> list[Trajectory]:
        pool = EnvPool(self.make, self.thread)
        slots = asyncio.Semaphore(self.slots)
        groups = [
            Group("train", task, f"0/train/{place}", size, 1.0) for place, task in enumerate(tasks)
        ]

        async def play(group: Group) -> PlayedGroup:
            rollout = Rollout(partial(play_in_pool, self.agent_factory(), pool), 2, slots)
            try:
                return await rollout.group(group)
            finally:
                self.failures += rollout.failures

        async def play_all() -> list[PlayedGroup]:
            async with asyncio.timeout(30):
                return await gather([play(group) for group in groups])

        return merge_groups(asyncio.run(play_all())).trajectories


@pytest.fixture
def table(tokenizer: PreTrainedTokenizerFast) -> Iterator[Table]:
    """Return a rollout in which nothing fails."""
    table = Table(tokenizer)
    yield table
    table.thread.close()


def lengths(trajectories: list[Trajectory]) -> dict[str, dict[int, int]]:
    """Steps by group and member."""
    found: dict[str, dict[int, int]] = {}
    for trajectory in trajectories:
        found.setdefault(trajectory.group, {})[trajectory.member] = len(trajectory)
    return found


def fail_once(at: tuple[int, int], fault: Callable[[], Any]) -> Fault:
    """Something that happens the first time that a task is at a step."""
    happened = []

    def maybe(task: int, step: int) -> None:
        if (task, step) == at and not happened:
            happened.append(1)
            fault()

    return maybe


class TestWhatIsKept:
    def test_groups_and_members(self, table: Table) -> None:
        played = table.play([3, 1], size=2)
        assert lengths(played) == {"0/train/0": {0: 3, 1: 3}, "0/train/1": {0: 1, 1: 1}}
        assert all(trajectory.won for trajectory in played)
        assert not any(table.failures.values())

    def test_steps(self, table: Table) -> None:
        _, played = table.play([2], size=2)
        assert [turn.observation for turn in played.turns] == ["at 0 of 2", "at 1 of 2"]
        assert [step.observation for step in played.steps] == ["at 1 of 2", "at 2 of 2"]
        assert [step.reward for step in played.steps] == [1.0, 2.0]
        assert played.episode_return == 3.0
        assert [turn.action for turn in played.turns] == ["wait", "wait"]
        assert played.info["won"] is False
        assert [step.info["won"] for step in played.steps] == [False, True]
        assert [step.terminated for step in played.steps] == [False, True]
        assert [turn.number for turn in played.turns] == [1, 2]
        expected = table.response(GOOD)
        for turn, step in zip(played.turns, played.steps, strict=True):
            np.testing.assert_array_equal(turn.response_ids, expected.token_ids)
            np.testing.assert_array_equal(turn.behavior_logp, expected.logp)
            assert (turn.completion, turn.is_valid) == (GOOD, True)
            assert (turn.weight_version, turn.engine_s) == ("w:3", 0.1)
            assert turn.tokens == (len(turn.prompt_ids), len(turn.response_ids))
            assert turn.request_s > 0
            assert step.env_s > 0
        asked = {tuple(prompt.token_ids) for prompt in table.policy.asked}
        assert {tuple(turn.prompt_ids.tolist()) for turn in played.turns} == asked

    def test_the_memory_is_of_the_member(self, table: Table) -> None:
        """A prompt shows the turns before it; the first one shows none."""
        played, _ = table.play([3], size=2)
        first, _, last = (table.tokenizer.decode(turn.prompt_ids) for turn in played.turns)
        assert all(f"at {time} of 3" in last for time in range(3))
        assert first.count("at 0 of 3") == 1

    def test_every_response_has_a_seed_of_its_own_the_same_each_time(self, table: Table) -> None:
        table.play([3, 3], size=2)
        first, table.policy.asked = table.policy.asked, []
        table.play([3, 3], size=2)
        seeds = [prompt.seed for prompt in first]
        assert len(set(seeds)) == 12
        assert sorted(seeds) == sorted(prompt.seed for prompt in table.policy.asked)
        assert response_seed("0/train/0/1/0", 2) in seeds
        assert all(0 <= seed < 2**63 for seed in seeds)

    def test_fewer_episodes_at_a_time_than_members(self, table: Table) -> None:
        """Nothing changes but the number of environments."""
        table.slots = 2
        assert lengths(table.play([3, 2], size=3)) == {
            "0/train/0": dict.fromkeys(range(3), 3),
            "0/train/1": dict.fromkeys(range(3), 2),
        }
        assert len(table.envs) == 2


class TestResponses:
    @pytest.mark.parametrize("text", ["", "nothing of use"])
    def test_no_response_is_valid(self, table: Table, text: str) -> None:
        """Nothing but the end token, or no tags: the episode goes on, and every step says so."""
        table.policy.respond = lambda prompt: table.response(text)
        for played in table.play([4], size=2):
            assert [turn.is_valid for turn in played.turns] == [False] * 4
            assert [turn.completion for turn in played.turns] == [text] * 4
        assert table.envs[0].actions == [text] * 4
        assert not any(table.failures.values())

    def test_a_response_that_was_cut_is_invalid(self, table: Table) -> None:
        """Whatever it says; its action is sent as others are."""
        table.policy.respond = lambda prompt: table.response(GOOD, "length")
        (turn,) = table.play([1], size=2)[0].turns
        assert not turn.is_valid
        assert turn.response_truncated
        assert turn.action == "wait"

    def test_a_prompt_that_was_cut_is_counted(self, table: Table) -> None:
        table.renderer = TokenRenderer(
            table.tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2, max_prompt_tokens=16),
        )
        (turn,) = table.play([1], size=2)[0].turns
        assert turn.prompt_truncated
        assert len(turn.prompt_ids) == 16


class TestFailures:
    @pytest.mark.parametrize(
        ("fault", "cause", "closed", "made"),
        [
            (lambda: 1 // 0, "env_errors", 1, {6, 7}),  # 6: one is free again before the close
            (lambda: time.sleep(1), "env_timeouts", 0, {7}),
        ],
    )
    def test_a_member_is_played_again(
        self, table: Table, fault: Callable[[], Any], cause: str, closed: int, made: set[int]
    ) -> None:
        """In another environment, with new seeds; the one that failed is closed, if it answers."""
        table.fault = fail_once((3, 1), fault)
        if cause == "env_timeouts":
            table.thread.close()
            table.thread = EnvThread(limit_s=0.5)
        groups = table.play([3, 2])
        assert lengths(groups)["0/train/0"] == dict.fromkeys(range(3), 3)
        assert table.failures == {cause: 1}
        assert sum(env.closed for env in table.envs) == closed
        assert len(table.envs) in made
        assert len({prompt.seed for prompt in table.policy.asked}) == len(table.policy.asked)

    def test_a_refused_prompt(self, table: Table) -> None:
        refused = []

        def respond(prompt: Prompt) -> Generation:
            if len(refused) < 1:
                refused.append(prompt)
                raise RequestFailedError("too long")
            return table.response(GOOD)

        table.policy.respond = respond
        assert len(table.play([2])) == 3
        assert table.failures == {"request_errors": 1}
        assert len(table.envs) == 3  # it was not the environment's fault

    def test_a_group_goes_on_without_a_member(self, table: Table) -> None:
        """After two attempts; the others keep their names."""
        lock, tries = threading.Lock(), Counter()
        first = response_seed("0/train/0/1/0", 0), response_seed("0/train/0/1/1", 0)

        def respond(prompt: Prompt) -> Generation:
            with lock:
                tries[prompt.seed] += 1
            if prompt.seed in first:
                raise RequestFailedError("no")
            return table.response(GOOD)

        table.policy.respond = respond
        assert lengths(table.play([2])) == {"0/train/0": {0: 2, 2: 2}}
        assert table.failures == {"request_errors": 2, "lost_members": 1}
        assert [tries[seed] for seed in first] == [1, 1]

    def test_a_group_of_one_is_no_group(self, table: Table) -> None:
        """Unless it was meant to be one, as in evaluations."""

        def broken(task: int, step: int) -> None:
            if task == 3:
                raise OSError("gone")

        table.fault = broken
        assert list(lengths(table.play([3, 2]))) == ["0/train/1"]
        assert table.failures == {"env_errors": 6, "lost_members": 3, "lost_groups": 1}
        assert list(lengths(table.play([2, 3], size=1))) == ["0/train/0"]

    def test_nothing_is_left(self, table: Table) -> None:
        """One line with what happened."""

        def broken(task: int, step: int) -> None:
            raise OSError("gone")

        table.fault = broken
        counts = dict(zip(FAILURES, (8, 0, 0, 4, 2, 0, 0), strict=True))
        with pytest.raises(RunStoppedError) as stopped:
            table.play([3, 2], size=2)
        assert str(stopped.value) == "every episode of the rollout failed: " + ", ".join(
            f"{name} {count}" for name, count in counts.items()
        )

    def test_an_error_of_ours_is_not_taken_for_the_environments(self, table: Table) -> None:
        def respond(prompt: Prompt) -> Generation:
            raise KeyError("bug")

        table.policy.respond = respond
        with pytest.raises(KeyError, match="bug"):
            table.play([2])
