"""Values of branches follow the policy, the environment and the agent's memory. No engine."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Text
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import TokenRenderer, Turn
from hgpo_rllib.bench.branching import AgentState, Brancher, MeanReturn, first_returns
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import GroupPlayer, play_in_pool
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

GAMMA, PENALTY = 0.5, 4.0
GOAL, LIMIT = 2, 4  # steps forward that win 8 points, and the step limit
CHANCES = {"go": 0.5, "wait": 0.25, "": 0.25}  # the policy's; "" is an invalid response
SETTINGS = AlgorithmSettings(gamma=GAMMA, invalid_penalty=PENALTY)
BRANCHES = 250


class Walk(gym.Env):
    """An environment won by going forward; resets and snapshots reproduce its observations."""

    observation_space = action_space = Text(100)

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}  # the same one after each step, with other content

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.at, self.taken, self.task = 0, 0, seed
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.at += action == "go"
        self.taken += 1
        won = self.at == GOAL
        observation, info = self._see()
        return observation, 8.0 * won, won, self.taken >= LIMIT and not won, info

    def snapshot(self) -> tuple[int, int, int | None]:
        return self.at, self.taken, self.task

    def restore(self, snapshot: tuple[int, int, int | None]) -> None:
        self.at, self.taken, self.task = snapshot

    def _see(self) -> tuple[str, dict[str, Any]]:
        actions = ["go", "wait", f"go {self.at}"]
        self.info |= {"goal": "walk", "admissible_actions": actions, "won": self.at == GOAL}
        return f"at {self.at} in task {self.task}", self.info


def future(at: int, taken: int) -> float:
    """Return the exact value of a state, without penalties."""
    if taken == LIMIT:
        return 0.0
    forward = 8.0 if at + 1 == GOAL else GAMMA * future(at + 1, taken + 1)
    return CHANCES["go"] * forward + (1 - CHANCES["go"]) * GAMMA * future(at, taken + 1)


def exact_v(at: int, taken: int) -> float:
    """Return the exact V, which includes this step's penalty but not those of later steps."""
    return future(at, taken) - CHANCES[""] * PENALTY


def exact_q(at: int, taken: int, action: str) -> float:
    if action == "go":
        return 8.0 if at + 1 == GOAL else GAMMA * future(at + 1, taken + 1)
    return GAMMA * future(at, taken + 1) - PENALTY * (action == "")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["at 1 in task 1, go, wait. walk"] * 20, [], 320)


class Table:
    """A brancher whose policy draws from `CHANCES` with the seed of the prompt."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.asked: list[Prompt] = []
        self.fault: Callable[[Prompt], None] = lambda prompt: None
        self.thread = EnvThread(limit_s=5)
        self.pool = EnvPool(Walk, self.thread)
        renderer = TokenRenderer(
            tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2),
        )
        self.make_agent = partial(PolicyAgent, self, renderer)

    async def generate(self, prompt: Prompt) -> Generation:
        self.asked.append(prompt)
        self.fault(prompt)
        assert prompt.seed is not None
        drawn = np.random.default_rng(prompt.seed).choice(list(CHANCES), p=list(CHANCES.values()))
        text = f"<think>.</think><action>{drawn}</action>" if drawn else "stay"
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        ids.append(self.tokenizer.eos_token_id)
        return Generation(np.array(ids, np.int32), np.zeros(len(ids), np.float32), "w", "stop", 0.0)

    def values(
        self, state: AgentState, executed: list[Turn], branches: int = BRANCHES, at_once: int = 64
    ) -> tuple[MeanReturn, list[MeanReturn]]:
        brancher = Brancher(self.make_agent, self.pool, SETTINGS, branches, 2, at_once)
        return asyncio.run(brancher.values(replace(state, executed=executed), "state"))

    def episode(self, length: int) -> Trajectory:
        """Return an episode of task 3 that has at least this length."""
        player = GroupPlayer(
            partial(play_in_pool, self.make_agent, self.pool), 1, asyncio.Semaphore()
        )
        for member in range(100):
            played = asyncio.run(player.play_member(3, "group", member))
            if played and len(played) >= length:
                self.asked.clear()
                return played
        raise AssertionError("no episode is that long")


@pytest.fixture
def table(tokenizer: PreTrainedTokenizerFast) -> Iterator[Table]:
    table = Table(tokenizer)
    yield table
    table.thread.close()


def turn(action: str, at: int, number: int) -> Turn:
    """Return a turn of task 3."""
    return Turn(f"at {at} in task 3", action or "stay", number=number, is_valid=bool(action))


@pytest.mark.parametrize(
    ("before", "at"), [([], 0), (["wait"], 0), (["go", "wait"], 1), (["go", "", "wait"], 1)]
)
def test_values_are_those_of_the_policy(table: Table, before: list[str], at: int) -> None:
    state = AgentState(
        3,
        [
            turn(action, before[:place].count("go"), place + 1)
            for place, action in enumerate(before)
        ],
    )
    taken = len(before)
    v, q = table.values(state, [turn(action, at, taken + 1) for action in CHANCES])
    expected = [exact_v(at, taken), *(exact_q(at, taken, action) for action in CHANCES)]
    for mean, exact in zip([v, *q], expected, strict=True):
        assert abs(mean.value - exact) <= 3 * mean.variance**0.5 + 1e-9
    if at == GOAL - 1 or taken == LIMIT - 1:
        assert q[0].variance == 0, "the episode ends here"


def test_the_variance_is_that_of_the_mean(table: Table) -> None:
    """At the last step, the variance of V is that of a return divided by the branches."""
    turns = [turn("go", 0, 1), turn("wait", 1, 2), turn("wait", 1, 3)]
    v, _ = table.values(AgentState(3, turns), [])
    outcomes, chances = np.array([8.0, 0.0, -PENALTY]), np.array(list(CHANCES.values()))
    variance = chances @ outcomes**2 - (chances @ outcomes) ** 2
    assert v.variance == pytest.approx(variance / BRANCHES, rel=0.1)


def test_branches_show_the_agent_the_prompts_of_the_episode(table: Table) -> None:
    played = table.episode(3)
    for time in range(3):
        table.asked.clear()
        turns = played.turns
        table.values(AgentState(3, turns[:time]), [turns[time]], branches=3, at_once=1)
        for name, shown in (("v", time), ("q0", time + 1)):
            prompts = [p for p in table.asked if p.session == f"state/{name}"]
            if shown < len(played):
                first = [p for p in prompts if p.token_ids == turns[shown].prompt_ids.tolist()]
                assert first[0] is prompts[0]
                assert len(first) == 3, "each branch starts there, with the same actions"
        assert len({prompt.seed for prompt in table.asked}) == len(table.asked), "no draw twice"


def test_the_same_name_gives_the_same_values(table: Table) -> None:
    state, executed = AgentState(3, []), [turn("go", 0, 1), turn("wait", 0, 1)]
    assert table.values(state, executed, 8) == table.values(state, executed, 8)


def test_first_returns_are_those_of_training(table: Table) -> None:
    played = table.episode(3)
    (found,) = first_returns([played], SETTINGS)
    rewards = [step.reward for step in played.steps]
    expected = sum(GAMMA**t * reward for t, reward in enumerate(rewards))
    assert found == expected - PENALTY * (not played.turns[0].is_valid)


def test_an_environment_that_does_not_repeat_itself_stops_the_command(table: Table) -> None:
    first = AgentState(3, [turn("go", 1, 1)])
    with pytest.raises(RunStoppedError, match=r"its observations .*: 'at 1 in task 3"):
        table.values(first, [], 2)
    with pytest.raises(RunStoppedError, match="make it deterministic"):
        table.values(AgentState(3, []), [turn("go", 1, 1)], 2)


def test_failed_branches_are_repeated_or_stop_the_command(table: Table) -> None:
    failed: list[Prompt] = []

    def once(prompt: Prompt) -> None:
        if not failed:
            failed.append(prompt)
            raise RequestFailedError("too long")

    table.fault = once
    table.values(AgentState(3, []), [], 4)
    (refused,) = failed
    firsts = [prompt for prompt in table.asked if prompt.token_ids == refused.token_ids]
    assert len(firsts) == len({prompt.seed for prompt in firsts}) == 4 + 1, "it is asked again"

    def always(prompt: Prompt) -> None:
        raise RequestFailedError("too long")

    table.fault = always
    with pytest.raises(RunStoppedError, match="4 branches failed in all 2 attempts"):
        table.values(AgentState(3, []), [], 4)
