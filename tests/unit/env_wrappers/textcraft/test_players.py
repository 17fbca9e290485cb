"""The crafter wins within the limit, and its bad habit loses games."""

import random

import pytest

from env_wrappers.textcraft.env import TextCraftEnv
from env_wrappers.textcraft.players import Crafter
from env_wrappers.textcraft.recipes import open_book
from tests.unit.env_wrappers.textcraft.textcraft_data import needs_package

pytestmark = needs_package


def play(env: TextCraftEnv, task: int, random_gets: float = 0.0, noise: float = 0.0) -> bool:
    observation, info = env.reset(seed=task)
    rng = random.Random(task)
    crafter = Crafter(open_book(None), env.goals[task], rng, random_gets)
    last: str | None = None
    done = False
    while not done:
        thought, action = crafter.act(observation, info["admissible_actions"], last)
        assert action in info["admissible_actions"], "its actions are offered"
        assert thought.startswith(env.goals[task].removeprefix("minecraft:").replace("_", " "))
        last = action
        if rng.random() < noise:
            last = crafter.perturb(info["admissible_actions"], rng)
        observation, _, won, truncated, info = env.step(last)
        done = won or truncated
    assert crafter.is_worth_learning(info) == won
    return won


@pytest.fixture(scope="module")
def env() -> TextCraftEnv:
    return TextCraftEnv(split="dev", max_steps=15, distractors=3, max_commands=8)


def share(env: TextCraftEnv, **habits: float) -> float:
    return sum(play(env, task, **habits) for task in range(env.num_tasks)) / env.num_tasks


def test_a_careful_crafter_wins_where_there_is_time(env: TextCraftEnv) -> None:
    """A careful crafter wins every game with enough steps and loses some within the limit."""
    longer = TextCraftEnv(split="dev", max_steps=100, distractors=3, max_commands=8)
    assert share(longer) == 1.0
    assert 0.85 < share(env) < 1.0


def test_random_gets_lose_games(env: TextCraftEnv) -> None:
    assert share(env, random_gets=0.6) < share(env) - 0.15


def test_it_recovers_from_perturbed_actions(env: TextCraftEnv) -> None:
    assert share(env, noise=0.2) > 0.7
