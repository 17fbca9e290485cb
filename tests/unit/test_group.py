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
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import StepAgent
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, Rollout
from hgpo_rllib.rollout.member import PolicySpeaker, play_member, response_seed
from hgpo_rllib.section import RunStoppedError
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

GOOD = "<think>.</think><action>wait</action>"
Fault = Callable[[int, int], None]  # task, step → an error, or a pause


class Counting(gym.Env):
    """Ends after as many steps as its task says; every step shows its number."""

    observation_space = action_space = Text(100)

    def __init__(self, fault: Fault):
        self.fault = fault
        self.actions: list[str] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        self.task, self.time = seed, 0
        self.actions.clear()
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.fault(self.task, self.time)
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
        self.agent = StepAgent(tokenizer, "alfworld_compact", 2, 4096)
        self.thread = EnvThread(limit_s=0.5)
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

    def play(self, tasks: list[int], size: int = 3) -> list[MultiAgentEpisode]:
        pool = EnvPool(self.make, self.thread)
        slots = asyncio.Semaphore(self.slots)
        play = partial(play_member, speaker=PolicySpeaker(self.agent, self.policy))
        rollout = Rollout(play, pool, 2, slots, self.failures)
        names = [f"0/train/{place}" for place in range(len(tasks))]
        return asyncio.run(asyncio.wait_for(rollout.groups(tasks, names, size), 30))


@pytest.fixture
def table(tokenizer: PreTrainedTokenizerFast) -> Iterator[Table]:
    """Return a rollout in which nothing fails."""
    table = Table(tokenizer)
    yield table
    table.thread.close()


def lengths(groups: list[MultiAgentEpisode]) -> dict[str, dict[str, int]]:
    """Steps by group and member."""
    return {g.id_: {name: len(m) for name, m in g.agent_episodes.items()} for g in groups}


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
        groups = table.play([3, 1], size=2)
        assert lengths(groups) == {
            "0/train/0": {"member_0": 3, "member_1": 3},
            "0/train/1": {"member_0": 1, "member_1": 1},
        }
        assert all(group.is_terminated for group in groups)
        assert not any(table.failures.values())

    def test_steps(self, table: Table) -> None:
        (group,) = table.play([2], size=2)
        member = group.agent_episodes["member_1"]
        assert member.get_observations() == ["at 0 of 2", "at 1 of 2", "at 2 of 2"]
        assert member.get_rewards() == [1.0, 2.0]
        assert member.get_actions() == ["wait", "wait"]
        assert [info["won"] for info in member.get_infos()] == [False, False, True]
        outputs = {k: member.get_extra_model_outputs(k) for k in member.extra_model_outputs}
        expected = table.response(GOOD)
        for t in range(2):
            np.testing.assert_array_equal(outputs["response_ids"][t], expected.token_ids)
            np.testing.assert_array_equal(outputs["behaviour_logp"][t], expected.logp)
        assert outputs["completion"] == [GOOD] * 2
        assert outputs["weight_version"] == ["w:3"] * 2
        assert outputs["is_valid"] == [True] * 2
        asked = [tuple(prompt.token_ids) for prompt in table.policy.asked]
        assert {tuple(ids.tolist()) for ids in outputs["prompt_ids"]} == set(asked)
        assert all(seconds > 0 for seconds in outputs["request_s"] + outputs["env_s"])
        assert outputs["engine_s"] == [0.1, 0.1]

    def test_the_memory_is_of_the_member(self, table: Table) -> None:
        """A prompt shows the turns before it; the first one shows none."""
        (group,) = table.play([3], size=2)
        prompts = group.agent_episodes["member_0"].get_extra_model_outputs("prompt_ids")
        first, _, last = (table.tokenizer.decode(ids) for ids in prompts)
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
            "0/train/0": dict.fromkeys(("member_0", "member_1", "member_2"), 3),
            "0/train/1": dict.fromkeys(("member_0", "member_1", "member_2"), 2),
        }
        assert len(table.envs) == 2


class TestResponses:
    @pytest.mark.parametrize("text", ["", "nothing of use"])
    def test_no_response_is_valid(self, table: Table, text: str) -> None:
        """Nothing but the end token, or no tags: the episode goes on, and every step says so."""
        table.policy.respond = lambda prompt: table.response(text)
        (group,) = table.play([4], size=2)
        for member in group.agent_episodes.values():
            assert member.get_extra_model_outputs("is_valid") == [False] * 4
            assert member.get_extra_model_outputs("completion") == [text] * 4
        assert table.envs[0].actions == [text] * 4
        assert not any(table.failures.values())

    def test_a_response_that_was_cut_is_invalid(self, table: Table) -> None:
        """Whatever it says; its action is sent as others are."""
        table.policy.respond = lambda prompt: table.response(GOOD, "length")
        (group,) = table.play([1], size=2)
        member = group.agent_episodes["member_0"]
        assert member.get_extra_model_outputs("is_valid") == [False]
        assert member.get_extra_model_outputs("response_truncated") == [True]
        assert member.get_actions() == ["wait"]

    def test_a_prompt_that_was_cut_is_counted(self, table: Table) -> None:
        table.agent = StepAgent(table.tokenizer, "alfworld_compact", 2, 16)
        (group,) = table.play([1], size=2)
        member = group.agent_episodes["member_0"]
        assert member.get_extra_model_outputs("prompt_truncated") == [True]
        assert len(member.get_extra_model_outputs("prompt_ids")[0]) == 16


class TestFailures:
    @pytest.mark.parametrize(
        ("fault", "cause"),
        [
            (lambda: 1 // 0, "env_errors"),
            (lambda: time.sleep(1), "env_timeouts"),
        ],
    )
    def test_a_member_is_played_again(
        self, table: Table, fault: Callable[[], Any], cause: str
    ) -> None:
        """In a new environment, with new seeds; the one that failed is not used again."""
        table.fault = fail_once((3, 1), fault)
        groups = table.play([3, 2])
        assert lengths(groups)["0/train/0"] == dict.fromkeys(
            ("member_0", "member_1", "member_2"), 3
        )
        assert table.failures == {cause: 1}
        assert len(table.envs) == 7
        assert len({prompt.seed for prompt in table.policy.asked}) == len(table.policy.asked)

    def test_a_refused_prompt(self, table: Table) -> None:
        refused = []

        def respond(prompt: Prompt) -> Generation:
            if len(refused) < 1:
                refused.append(prompt)
                raise RequestFailedError("too long")
            return table.response(GOOD)

        table.policy.respond = respond
        assert [len(g.agent_episodes) for g in table.play([2])] == [3]
        assert table.failures == {"request_errors": 1}

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
        assert lengths(table.play([2])) == {"0/train/0": {"member_0": 2, "member_2": 2}}
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
        counts = dict(zip(FAILURES, (8, 0, 0, 4, 2), strict=True))
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
