"""Rows with several roles and spans: the advantage of each token."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Text
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hgpo_rllib.advantages import ESTIMATORS
from hgpo_rllib.agent import Agent, Span, Turn
from hgpo_rllib.learner.batching import plan_update, signal_columns, token_batch, token_columns
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import Group, GroupPlayer, play_in_pool
from hgpo_rllib.rollout.scoring import ScoredTrajectories, score
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.learner import LearnerSettings
from tests.unit.learner.learner_reference import (
    llm_of,
    make_columns,
    make_learner,
    update,
)

quickly = settings(max_examples=max(60, settings().max_examples))
CPU = torch.device("cpu")
SETTINGS = AlgorithmSettings(gamma=0.5, estimator="reinforce", normalize="mean")


@pytest.fixture(scope="module", autouse=True)
def estimators() -> Iterator[None]:
    """Register estimators whose advantages depend only on the number or order of the steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ESTIMATORS, "counted", lambda steps, _: steps.time + 1.0)
        patch.setitem(ESTIMATORS, "thoughts", lambda steps, _: steps.time + 11.0)
        patch.setitem(
            ESTIMATORS,
            "drawn",
            lambda steps, _: np.random.default_rng(0).standard_normal(len(steps)),
        )
        yield


class Corridor(gym.Env):
    """A corridor of three doors; opening the n-th door has reward n, and another action ends it."""

    observation_space = action_space = Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.door = 0
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        opened = action == "open"
        self.door += opened
        observation, info = self._see()
        over = self.door == 3 or not opened
        return observation, float(self.door * opened), over, False, info

    def _see(self) -> tuple[str, dict[str, Any]]:
        return f"door {self.door}", {"won": self.door == 3, "inadmissible": False}


class PlannerExecutor(Agent):
    """An agent that plans at every other step and opens as many doors as its member's number."""

    def __init__(self, info: Mapping[str, Any], group: str, name: str):
        self.doors, self.time = int(name.partition("/")[0]), 0

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        action = "open" if self.time < self.doors else "wait"
        turn = replace(response(observation, action, 2 + self.time), role="executor")
        if self.time % 2 == 0:
            plan = replace(response(observation, "", 3 + self.doors), role="planner")
            turn = replace(turn, preceding=(plan,))
        self.time += 1
        return turn


def response(observation: str, action: str, tokens: int) -> Turn:
    """Return a turn whose response has this many tokens."""
    return Turn(
        observation,
        action,
        prompt_ids=np.arange(5, dtype=np.int32),
        response_ids=np.arange(tokens, dtype=np.int32),
        behavior_logp=np.full(tokens, -1.0, np.float32),
    )


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    """Return a group of four members, which open 0, 1, 2 and 3 doors."""
    thread = EnvThread(limit_s=10)
    play = partial(play_in_pool, PlannerExecutor, EnvPool(Corridor, thread))
    player = GroupPlayer(play, 1, asyncio.Semaphore(4))
    trajectories = asyncio.run(player.play_group(Group("train", 0, "a", 4, 1.0))).trajectories
    thread.close()
    return trajectories


def columns_of(scored: ScoredTrajectories) -> dict[str, Tensor]:
    return token_columns(scored.trajectories) | signal_columns(scored)


def places_of(scored: ScoredTrajectories) -> list[tuple[int, int, int]]:
    """Return the member, the step and the role (0 for the acting one) of each response."""
    return [
        (member, t, int(response.role != "executor"))
        for member, trajectory in enumerate(scored.trajectories)
        for t, turn in enumerate(trajectory.turns)
        for response in turn.responses
    ]


def every_token(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return token_batch(columns, np.arange(len(columns["prompt_length"])), CPU)


def test_each_role_gets_the_advantages_of_its_estimator(played: list[Trajectory]) -> None:
    """Plans get GRPO's advantages and executors returns minus their mean, computed by hand."""
    scored = score(played, SETTINGS.model_copy(update={"role_estimators": {"planner": "grpo"}}))
    columns = columns_of(scored)
    batch = every_token(columns)
    rewards = [[0.0], [1.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, 3.0]]
    totals = [sum(member_values) for member_values in rewards]
    returns = [
        [
            sum(r * 0.5**k for k, r in enumerate(member_values[t:]))
            for t in range(len(member_values))
        ]
        for member_values in rewards
    ]
    mean = np.mean([value for member_values in returns for value in member_values])
    expected: list[tuple[int, int, int, float]] = []  # trajectory, turn, role, advantage
    for member, member_values in enumerate(returns):
        for t, value in enumerate(member_values):
            if t % 2 == 0:
                expected += [(member, t, 1, totals[member] - np.mean(totals))] * (3 + member)
            expected += [(member, t, 0, value - mean)] * (2 + t)
    places = places_of(scored)
    assert [places[row] for row in batch["row"]] == [token[:3] for token in expected]
    np.testing.assert_allclose(batch["advantage"], [token[3] for token in expected], rtol=1e-6)


def test_without_estimators_of_their_own_roles_share_the_step_s(played: list[Trajectory]) -> None:
    scored = score(played, SETTINGS)
    advantage: dict[tuple[int, int], float] = {}
    values = columns_of(scored)["advantage"].tolist()
    for (member, t, _), value in zip(places_of(scored), values, strict=True):
        assert advantage.setdefault((member, t), value) == value


def test_a_critic_says_the_value_of_a_step_by_its_acting_response(played: list[Trajectory]) -> None:
    """A step's value is that of its acting response, and all its responses share the target."""
    rows = 9 + 6  # nine steps, six of them with a plan
    value = np.arange(float(rows))
    scored = score(played, SETTINGS.model_copy(update={"estimator": "ppo"}), value)
    columns = columns_of(scored)
    acts = np.array([role == 0 for _, _, role in places_of(scored)])
    assert scored.steps.value is not None
    assert scored.steps.value.tolist() == value[acts].tolist()
    assert columns["value"].tolist() == value.tolist()
    assert len(columns["value_target"]) == len(columns["advantage"]) == rows
    for row in np.flatnonzero(~acts):
        assert columns["value_target"][row] == columns["value_target"][row + 1]


def one_episode(turns: list[Turn], **changes: Any) -> ScoredTrajectories:
    """Return a scored episode; step t has the advantage t + 1, and t + 11 for `thought`."""
    after = {"won": False, "inadmissible": False}
    steps = [Step(turn, "", 1.0, False, False, after, 0.0) for turn in turns]
    chosen = {"estimator": "counted", "role_estimators": {"thought": "thoughts"}} | changes
    trajectory = Trajectory({"won": False}, steps, "a")
    return score([trajectory], SETTINGS.model_copy(update=chosen))


def test_one_role_and_no_spans_are_the_arrays_as_ever(played: list[Trajectory]) -> None:
    """Without roles or spans, there is one row and one advantage per step."""
    turns = [step.turn for trajectory in played for step in trajectory.steps]
    drawn: Any = {"estimator": "drawn", "role_estimators": {}}
    scored = one_episode([replace(turn, preceding=()) for turn in turns], **drawn)
    values = np.random.default_rng(0).standard_normal(len(turns))
    columns = columns_of(scored)
    assert columns["advantage"].shape == (len(turns),)
    assert columns["advantage"].numpy().tobytes() == values.astype(np.float32).tobytes()
    batch = every_token(columns)
    assert torch.equal(batch["advantage"], columns["advantage"][batch["row"]])
    whole = [replace(t, spans=(Span(0, len(t.response_ids), "x"),), preceding=()) for t in turns]
    marked = every_token(columns_of(one_episode(whole, **drawn)))
    assert marked["advantage"].numpy().tobytes() == batch["advantage"].numpy().tobytes()


@st.composite
def responses(draw: st.DrawFn) -> list[Turn]:
    turns = []
    for length in draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)):
        place = st.integers(0, length - 1)
        spans = draw(st.lists(st.tuples(place, place, st.sampled_from(["thought", "action"]))))
        marked = tuple(Span(min(a, b), max(a, b) + 1, role) for a, b, role in spans)
        turns.append(replace(response("", "", length), spans=marked))
    return turns


@quickly
@given(responses(), st.booleans())
def test_a_token_gets_the_sum_of_its_spans(turns: list[Turn], drop: bool) -> None:
    """Spans may overlap or leave gaps; a response without spans counts as one span."""
    columns = columns_of(one_episode(turns))
    expected = []
    for t, turn in enumerate(turns):
        spans = turn.spans or (Span(0, 8, "agent"),)
        worth = [t + 1 + 10 * (span.role == "thought") for span in spans]
        for token in range(len(turn.response_ids)):
            inside = [span.start <= token < span.end for span in spans]
            expected.append(sum(w for w, there in zip(worth, inside, strict=True) if there))
    assert every_token(columns)["advantage"].tolist() == expected
    chosen = LearnerSettings(drop_zero_advantage=drop)
    (part,) = plan_update(columns, chosen, np.random.default_rng(0))
    assert len(part.trained) == len(turns)


@pytest.mark.parametrize("span", [(0, 4), (-1, 2), (2, 2)])
def test_a_span_outside_of_its_response_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"not in a response of 3 tokens"):
        replace(response("", "", 3), spans=(Span(*span, "x"),))


def test_an_update_with_advantages_of_tokens(model_path: str) -> None:
    """Advantages per token that are constant within a step give the same update bit for bit."""
    results = []
    for of_tokens in (False, True):
        learner = make_learner(model_path, minibatch_size=3, num_epochs=2, mismatch_alarm=None)
        columns = make_columns(llm_of(learner))
        if of_tokens:
            width = columns["response_ids"].shape[1]
            columns["advantage"] = columns["advantage"][:, None].repeat(1, width)
        update(learner, columns)
        results.append(llm_of(learner).state_dict())
    for name, tensor in results[0].items():
        assert torch.equal(tensor, results[1][name]), name
