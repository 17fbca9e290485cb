"""Groups of members: what is recorded, what fails, and what remains. No Ray, no engine."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import TokenRenderer, response_seed
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout import group as group_module
from hgpo_rllib.rollout.environments import EnvThread
from hgpo_rllib.rollout.group import FAILURES
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from tests.unit.rollout.harness import GOOD, CountingEnv, Fault, RolloutHarness


@pytest.fixture
def harness(tokenizer: PreTrainedTokenizerFast) -> Iterator[RolloutHarness]:
    """Yield a rollout in which nothing fails."""
    harness = RolloutHarness(tokenizer)
    yield harness
    harness.thread.close()


def lengths(trajectories: list[Trajectory]) -> dict[str, dict[int, int]]:
    """Return the number of steps by group and member."""
    found: dict[str, dict[int, int]] = {}
    for trajectory in trajectories:
        found.setdefault(trajectory.group, {})[trajectory.member] = len(trajectory)
    return found


def fail_once(at: tuple[int, int], fault: Callable[[], Any]) -> Fault:
    """Return a fault that runs `fault` the first time that a task reaches a step."""
    happened = []

    def maybe(task: int, step: int) -> None:
        if (task, step) == at and not happened:
            happened.append(1)
            fault()

    return maybe


def test_an_environment_may_change_its_info_in_place(harness: RolloutHarness) -> None:
    """Each step keeps the info of its time, even if the environment reuses the dictionary."""

    class OneInfo(CountingEnv):
        shared: dict[str, Any] | None = None

        def _see(self) -> tuple[str, dict[str, Any]]:
            observation, info = super()._see()
            self.shared = {} if self.shared is None else self.shared
            self.shared.update(info, game=f"game {self.task}")
            return observation, self.shared

    harness.make = lambda: OneInfo(lambda task, step: None)  # type: ignore[method-assign]
    harness.slots = 1  # one environment plays all episodes
    for trajectory in harness.play([2, 3]):
        size = len(trajectory)
        assert trajectory.info["game"] == f"game {size}"
        assert [step.info["won"] for step in trajectory.steps] == [False] * (size - 1) + [True]


class TestWhatIsKept:
    def test_groups_and_members(self, harness: RolloutHarness) -> None:
        played = harness.play([3, 1], size=2)
        assert lengths(played) == {"0/train/0": {0: 3, 1: 3}, "0/train/1": {0: 1, 1: 1}}
        assert all(trajectory.won for trajectory in played)
        assert not any(harness.failures.values())
        sessions = Counter(prompt.session for prompt in harness.policy.asked)
        assert sessions == {"0/train/0": 6, "0/train/1": 2}

    def test_steps(self, harness: RolloutHarness) -> None:
        _, played = harness.play([2], size=2)
        assert [turn.observation for turn in played.turns] == ["at 0 of 2", "at 1 of 2"]
        assert [step.observation for step in played.steps] == ["at 1 of 2", "at 2 of 2"]
        assert [step.reward for step in played.steps] == [1.0, 2.0]
        assert played.episode_return == 3.0
        assert [turn.action for turn in played.turns] == ["wait", "wait"]
        assert played.info["won"] is False
        assert [step.info["won"] for step in played.steps] == [False, True]
        assert [step.terminated for step in played.steps] == [False, True]
        assert [turn.number for turn in played.turns] == [1, 2]
        expected = harness.response(GOOD)
        for turn, step in zip(played.turns, played.steps, strict=True):
            np.testing.assert_array_equal(turn.response_ids, expected.token_ids)
            np.testing.assert_array_equal(turn.behavior_logp, expected.logp)
            assert (turn.completion, turn.is_valid) == (GOOD, True)
            assert (turn.weight_version, turn.engine_s) == ("w:3", 0.1)
            assert turn.tokens == (len(turn.prompt_ids), len(turn.response_ids))
            assert turn.request_s > 0
            assert step.env_s > 0
        asked = {tuple(prompt.token_ids) for prompt in harness.policy.asked}
        assert {tuple(turn.prompt_ids.tolist()) for turn in played.turns} == asked

    def test_the_time_of_the_environment_is_without_that_of_the_policy(
        self, harness: RolloutHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = [0.0]

        def advance(seconds: float) -> None:
            clock[0] += seconds

        def respond(prompt: Prompt) -> Generation:
            advance(5.0)
            return harness.response(GOOD)

        fake = SimpleNamespace(perf_counter=lambda: clock[0])
        monkeypatch.setattr(group_module, "time", fake)
        harness.policy.respond, harness.fault = respond, lambda task, step: advance(2.0)
        (played,) = harness.play([2], size=1)
        assert [step.env_s for step in played.steps] == [2.0, 2.0]

    def test_the_memory_is_of_the_member(self, harness: RolloutHarness) -> None:
        """A prompt shows the member's own earlier turns; the first prompt shows none."""
        played, _ = harness.play([3], size=2)
        first, _, last = (harness.tokenizer.decode(turn.prompt_ids) for turn in played.turns)
        assert all(f"at {time} of 3" in last for time in range(3))
        assert first.count("at 0 of 3") == 1

    def test_every_response_has_a_seed_of_its_own_the_same_each_time(
        self, harness: RolloutHarness
    ) -> None:
        harness.play([3, 3], size=2)
        first, harness.policy.asked = harness.policy.asked, []
        harness.play([3, 3], size=2)
        seeds = [prompt.seed for prompt in first]
        assert len(set(seeds)) == 12
        assert sorted(seeds) == sorted(prompt.seed for prompt in harness.policy.asked)
        assert response_seed("0/train/0/1/0", 2) in seeds
        assert all(0 <= seed < 2**63 for seed in seeds)

    def test_fewer_episodes_at_a_time_than_members(self, harness: RolloutHarness) -> None:
        """Fewer slots than members give the same episodes in fewer environments."""
        harness.slots = 2
        assert lengths(harness.play([3, 2], size=3)) == {
            "0/train/0": dict.fromkeys(range(3), 3),
            "0/train/1": dict.fromkeys(range(3), 2),
        }
        assert len(harness.envs) == 2


class TestResponses:
    @pytest.mark.parametrize("text", ["", "nothing of use"])
    def test_no_response_is_valid(self, harness: RolloutHarness, text: str) -> None:
        """Steps of empty or untagged responses are invalid, and the episode continues."""
        harness.policy.respond = lambda prompt: harness.response(text)
        for played in harness.play([4], size=2):
            assert [turn.is_valid for turn in played.turns] == [False] * 4
            assert [turn.completion for turn in played.turns] == [text] * 4
        assert harness.envs[0].actions == [text] * 4
        assert not any(harness.failures.values())

    def test_a_response_that_was_cut_is_invalid(self, harness: RolloutHarness) -> None:
        """A truncated response is invalid, even if it has an action; the action is sent anyway."""
        harness.policy.respond = lambda prompt: harness.response(GOOD, "length")
        (turn,) = harness.play([1], size=2)[0].turns
        assert not turn.is_valid
        assert turn.response_truncated
        assert turn.action == "wait"

    def test_the_versions_of_a_response(self, harness: RolloutHarness) -> None:
        """A turn has all weight versions of its response, and the oldest sampled its beginning."""
        versions = (("w:2", 3), ("w:3", 1))
        harness.policy.respond = lambda prompt: replace(harness.response(GOOD), versions=versions)
        (turn,) = harness.play([1], size=2)[0].turns
        assert (turn.weight_versions, turn.oldest_version) == (versions, "w:2")

    def test_a_prompt_that_was_cut_is_counted(self, harness: RolloutHarness) -> None:
        harness.renderer = TokenRenderer(
            harness.tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2, max_prompt_tokens=16),
        )
        (turn,) = harness.play([1], size=2)[0].turns
        assert turn.prompt_truncated
        assert len(turn.prompt_ids) == 16


class TestFailures:
    @pytest.mark.parametrize(
        ("fault", "cause", "closed", "made"),
        [
            (lambda: 1 // 0, "env_errors", 1, {6, 7}),  # 6: one is free before the close
            (lambda: time.sleep(1), "env_timeouts", 0, {7}),
        ],
    )
    def test_a_member_is_played_again(
        self,
        harness: RolloutHarness,
        fault: Callable[[], Any],
        cause: str,
        closed: int,
        made: set[int],
    ) -> None:
        """A failed member is retried with new seeds; its environment is closed unless it hangs."""
        harness.fault = fail_once((3, 1), fault)
        if cause == "env_timeouts":
            harness.thread.close()
            harness.thread = EnvThread(limit_s=0.5)
        groups = harness.play([3, 2])
        assert lengths(groups)["0/train/0"] == dict.fromkeys(range(3), 3)
        assert harness.failures == {cause: 1}
        assert sum(env.closed for env in harness.envs) == closed
        assert len(harness.envs) in made
        assert len({prompt.seed for prompt in harness.policy.asked}) == len(harness.policy.asked)

    @pytest.mark.parametrize("wrong", [("at", math.nan), ("at", None), (None, 1.0)])
    def test_a_wrong_result_is_an_error_of_the_environment(
        self, harness: RolloutHarness, wrong: tuple[Any, Any]
    ) -> None:
        """A member is played again after a reward or an observation that cannot be used."""
        returned = list[int]()

        class WrongOnce(CountingEnv):
            """An environment whose first step of all returns `wrong`."""

            def step(self, action: str) -> Any:
                result = super().step(action)
                if returned:
                    return result
                returned.append(1)
                return (*wrong, *result[2:])

        harness.make = lambda: WrongOnce(lambda task, step: None)  # type: ignore[method-assign]
        assert lengths(harness.play([3])) == {"0/train/0": dict.fromkeys(range(3), 3)}
        assert harness.failures == {"env_errors": 1}

    def test_a_reset_without_text_is_an_error_of_the_environment(
        self, harness: RolloutHarness
    ) -> None:
        first = iter([None])

        class Wordless(CountingEnv):
            """An environment whose first observation is None."""

            def reset(self, **options: Any) -> Any:
                observation, info = super().reset(**options)
                return next(first, observation), info

        harness.make = lambda: Wordless(lambda task, step: None)  # type: ignore[method-assign]
        (played,) = harness.play([2], size=1)
        assert played.turns[0].observation == "at 0 of 2"
        assert harness.failures == {"env_errors": 1}

    def test_a_refused_prompt(self, harness: RolloutHarness) -> None:
        refused = []

        def respond(prompt: Prompt) -> Generation:
            if len(refused) < 1:
                refused.append(prompt)
                raise RequestFailedError("too long")
            return harness.response(GOOD)

        harness.policy.respond = respond
        assert len(harness.play([2])) == 3
        assert harness.failures == {"request_errors": 1}
        assert len(harness.envs) == 3  # the failure was not the environment's

    def test_a_group_goes_on_without_a_member(self, harness: RolloutHarness) -> None:
        """A member is dropped after two failed attempts; the others keep their numbers."""
        lock, tries = threading.Lock(), Counter()
        first = response_seed("0/train/0/1/0", 0), response_seed("0/train/0/1/1", 0)

        def respond(prompt: Prompt) -> Generation:
            with lock:
                tries[prompt.seed] += 1
            if prompt.seed in first:
                raise RequestFailedError("no")
            return harness.response(GOOD)

        harness.policy.respond = respond
        assert lengths(harness.play([2])) == {"0/train/0": {0: 2, 2: 2}}
        assert harness.failures == {"request_errors": 2, "lost_members": 1}
        assert [tries[seed] for seed in first] == [1, 1]

    def test_a_group_of_one_is_no_group(self, harness: RolloutHarness) -> None:
        """A group that loses all members but one is lost, unless its size is 1 (evaluations)."""

        def broken(task: int, step: int) -> None:
            if task == 3:
                raise OSError("gone")

        harness.fault = broken
        assert list(lengths(harness.play([3, 2]))) == ["0/train/1"]
        assert harness.failures == {"env_errors": 6, "lost_members": 3, "lost_groups": 1}
        assert list(lengths(harness.play([2, 3], size=1))) == ["0/train/0"]

    def test_a_rollout_whose_episodes_all_fail(self, harness: RolloutHarness) -> None:
        """If all episodes fail, the error is one line with all failure counts."""

        def broken(task: int, step: int) -> None:
            raise OSError("gone")

        harness.fault = broken
        counts = dict(zip(FAILURES, (8, 0, 0, 4, 2, 0, 0), strict=True))
        with pytest.raises(RunStoppedError) as stopped:
            harness.play([3, 2], size=2)
        assert str(stopped.value) == "every episode of the rollout failed: " + ", ".join(
            f"{name} {count}" for name, count in counts.items()
        )

    def test_an_error_of_ours_is_not_taken_for_the_environments(
        self, harness: RolloutHarness
    ) -> None:
        def respond(prompt: Prompt) -> Generation:
            raise KeyError("bug")

        harness.policy.respond = respond
        with pytest.raises(KeyError, match="bug"):
            harness.play([2])
