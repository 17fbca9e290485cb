"""hgpo/Gymnasium-v0: environments of Gymnasium and of other packages in text."""

import copy
import importlib.util
import pickle
import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from gymnasium.utils.env_checker import check_env

from env_wrappers.errors import DataError
from env_wrappers.gymnasium_env import GymnasiumEnv, without_colors
from env_wrappers.spaces import ANY_ACTION
from tests.paths import ROOT

LAKE = ("left", "down", "right", "up")
TAXI = ("south", "north", "east", "west", "pick up", "drop off")
CLIFF = ("up", "right", "down", "left")


class Echo(gymnasium.Env[str, str]):
    """Echo letters for three steps; "win" wins, and "bin" earns as much without a win."""

    observation_space = action_space = Text(9, charset="abinw")

    def __init__(self, wins: float = 1.0) -> None:
        self.wins = wins

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.said: list[str] = []
        return f"task {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        reward = self.wins * (action in ("win", "bin"))
        return " ".join(self.said), reward, action == "win", len(self.said) == 3, {}


gymnasium.register("tests/Echo-v0", entry_point=Echo, max_episode_steps=2)


def lake(**options: Any) -> GymnasiumEnv:
    arguments = {"is_slippery": False}
    return GymnasiumEnv("FrozenLake-v1", "goal", LAKE, arguments, **options)


def test_named_actions_and_a_rendering() -> None:
    env = lake()
    observation, info = env.reset(seed=4)
    assert observation.split() == ["[red", "S]FFF", "FHFH", "FFFH", "HFFG"]
    assert info["admissible_actions"] == list(LAKE)
    assert (info["goal"], info["game"]) == ("goal", "FrozenLake-v1/4")
    same, reward, terminated, truncated, after = env.step("Down")
    assert (same, reward, terminated, truncated) == (observation, 0, False, False)
    assert (after["inadmissible"], after["inadmissible_count"]) == (True, 1)
    assert after["state_hash"] == info["state_hash"]
    for action in ("down", "down", "right", "right", "down"):
        _, reward, terminated, _, after = env.step(action)
        assert not terminated
        assert after["state_hash"] != info["state_hash"]
    observation, reward, terminated, truncated, after = env.step("right")
    assert observation.split() == ["(Right)", "SFFF", "FHFH", "FFFH", "HFF[red", "G]"]
    assert (reward, terminated, truncated, after["won"]) == (1, True, False, True)


def test_infos_are_the_callers() -> None:
    env = lake()
    env.reset(seed=4)[1]["admissible_actions"].clear()
    assert env.step("down")[4]["admissible_actions"] == list(LAKE)


@pytest.mark.parametrize(
    ("name", "actions", "arguments", "different"),
    [
        ("CliffWalking-v1", LAKE, {"is_slippery": False}, "name"),
        ("FrozenLake-v1", LAKE, {"is_slippery": True}, "arguments"),
        ("FrozenLake-v1", LAKE[::-1], {"is_slippery": False}, "list of actions"),
    ],
)
def test_a_snapshot_needs_the_same_environment(
    name: str, actions: tuple[str, ...], arguments: dict[str, Any], different: str
) -> None:
    env = lake()
    env.reset(seed=4)
    other = GymnasiumEnv(name, "goal", actions, arguments)
    with pytest.raises(DataError, match=f"of an environment with another {different}:"):
        other.restore(env.snapshot())


def test_a_lost_episode() -> None:
    env = lake()
    env.reset(seed=0)
    env.step("right")
    _, reward, terminated, _, info = env.step("down")
    assert (reward, terminated, info["won"]) == (0, True, False)


def test_texts() -> None:
    """Text outside the action space does nothing, and the registered step limit is ignored."""
    env = GymnasiumEnv("tests/Echo-v0", num_tasks=2)
    observation, info = env.reset(seed=3)
    assert observation == info["goal"] == "task 1"
    assert info["admissible_actions"] == [ANY_ACTION]
    assert env.step("a b")[0] == "task 1"
    assert env.step("ab")[0] == "ab"
    observation, reward, terminated, truncated, info = env.step("win")
    assert (observation, reward, terminated, info["won"]) == ("ab win", 1, True, True)
    env.reset(seed=0)
    for ends in (False, False, True):
        _, reward, terminated, truncated, info = env.step("bin")
        assert (reward, terminated, truncated, info["won"]) == (1, ends, False, False)


def test_offered_texts() -> None:
    env = GymnasiumEnv("tests/Echo-v0", actions=("win", "a b"))
    assert env.reset(seed=0)[1]["admissible_actions"] == ["win", "a b"]
    for action in ("ab", "a b"):  # not offered, not in the action space
        observation, *_, info = env.step(action)
        assert (observation, info["inadmissible"]) == ("task 0", True)
    assert env.step("win")[4]["won"]


def test_success_reward() -> None:
    for needed, won in ((0.5, True), (0.6, False)):
        env = GymnasiumEnv("tests/Echo-v0", arguments={"wins": 0.5}, success_reward=needed)
        env.reset(seed=0)
        assert env.step("win")[4]["won"] == won


def test_splits_share_no_seed() -> None:
    seeds = {
        split: {GymnasiumEnv("tests/Echo-v0", split=split).reset(seed=s)[0] for s in range(5)}
        for split in ("train", "test")
    }
    assert not seeds["train"] & seeds["test"]


@pytest.mark.parametrize(
    ("name", "actions"),
    [("FrozenLake-v1", LAKE), ("Taxi-v3", TAXI), ("CliffWalking-v1", CLIFF)],
)
def test_episodes_are_reproducible(name: str, actions: tuple[str, ...]) -> None:
    """Episodes repeat by seed, from snapshots and in copies, and Gymnasium's checker passes."""
    env = GymnasiumEnv(name, "goal", actions)
    check_env(env, skip_render_check=True)
    rng = random.Random(0)
    taken = [actions[0], "nothing", *(rng.choice(actions) for _ in range(20))]

    def play(env: GymnasiumEnv, actions: list[str]) -> list[Any]:
        steps = []
        for action in actions:
            steps.append(env.step(action))
            if steps[-1][2]:
                break
        return steps

    started = env.reset(seed=7)
    whole = play(env, taken)
    assert env.reset(seed=7) == started
    env.step(taken[0])
    snapshot, others = env.snapshot(), [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    for other in others:
        assert play(other, taken[1:]) == whole[1:]
    for _ in range(3):
        assert play(env, taken[1:]) == whole[1:]
        env.restore(snapshot)


def test_colors_in_words() -> None:
    """ANSI colors in observations become words."""
    observation, _ = GymnasiumEnv("Taxi-v3", "goal", TAXI).reset(seed=3)
    assert "|[blue R]: |[yellow  ]: :G|" in observation
    assert "\x1b" not in observation
    assert "[magenta [yellow Y]]" in GymnasiumEnv("Taxi-v3", "goal", TAXI).reset(seed=5)[0]


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("\x1b[31;1mS\x1b[0m", "[red S]"),
        ("\x1b[41mS\x1b[0m", "[red S]"),
        ("\x1b[38;1mS\x1b[0m", "[crimson S]"),
        ("\x1b[91mS\x1b[0m", "[red S]"),
        ("\x1b[1mS\x1b[0m", "S"),  # bold
        ("\x1b[39mS\x1b[0m", "S"),  # the terminal's own color
        ("\x1b[49mS\x1b[0m", "S"),
        ("\x1b[35m\x1b[43mS\x1b[0m\x1b[0m", "[magenta [yellow S]]"),
        ("\x1b[35m\x1b[34;1m\x1b[43mS\x1b[0m\x1b[0m\x1b[0m", "[magenta [blue [yellow S]]]"),
    ],
)
def test_color_codes(shown: str, words: str) -> None:
    assert without_colors(f"a{shown}b") == f"a{words}b"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actions": LAKE[:3]}, "FrozenLake-v1 has 4 actions: actions must name each, in order"),
        ({"actions": None}, "FrozenLake-v1 has 4 actions"),
        ({"actions": (LAKE[1], *LAKE[1:])}, "actions must name each"),
        ({"name": "Pendulum-v1", "actions": None}, "only text and Discrete can be played"),
        ({"actions": ("Left", *LAKE[1:])}, "lower case"),
        ({"split": "dev"}, "unknown split 'dev': choose train, test"),
        ({"data": "games"}, "leave env.data out"),
        ({"num_tasks": 0}, "num_tasks is from 1 to 1,000,000, not 0"),
        ({"num_tasks": 1_000_001}, "num_tasks is from 1"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        GymnasiumEnv(**{"name": "FrozenLake-v1", "actions": LAKE, **settings})


def test_no_text() -> None:
    env = GymnasiumEnv("Blackjack-v1", actions=("stick", "hit"))
    with pytest.raises(DataError, match="Blackjack-v1 cannot be played in text"):
        env.reset(seed=0)


class Counters(gymnasium.Env[Any, int]):
    """2,000 numbers, of which an action increments one in the middle."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 (Gymnasium's convention)
    observation_space = Box(0, 9, (2_000,), np.int64)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.numbers = np.zeros(2_000, np.int64)
        return self.numbers, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.numbers[1_000] += action
        return self.numbers, 0, False, False, {}

    def render(self) -> str:  # type: ignore[override]
        return "numbers"


gymnasium.register("tests/Counters-v0", entry_point=Counters)


def test_states_of_large_arrays_differ() -> None:
    env = GymnasiumEnv("tests/Counters-v0", "goal", ("wait", "count"))
    hashes = [env.reset(seed=0)[1]["state_hash"]]
    hashes += [env.step(action)[4]["state_hash"] for action in ("wait", "count")]
    assert hashes[0] == hashes[1] != hashes[2]


HANOI = ["[a c]", "[a b]", "[c b]", "[a c]", "[b a]", "[b c]", "[a c]"]


@pytest.mark.parametrize(
    ("package", "name", "game", "actions"),
    [
        ("textarena", "TextArena", "GuessTheNumber-v0", [f"[{i}]" for i in range(1, 21)]),
        ("textarena", "TextArena", "TowerOfHanoi-v0", HANOI),
        ("gem", "Gem", "game:GuessTheNumber-v0-easy", [rf"\boxed{{{i}}}" for i in (5, 2, 3, 4)]),
    ],
)
def test_examples(
    package: str, name: str, game: str, actions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The games of examples/text_games.py are deterministic, and these actions win them."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    monkeypatch.syspath_prepend(Path(ROOT) / "examples")
    settings = {"arguments": {"game": game}, "success_reward": 1.0}
    env = GymnasiumEnv(f"text_games:{name}-v0", **settings)
    other = GymnasiumEnv(f"text_games:{name}-v0", **settings)
    started = env.reset(seed=3)
    assert env.reset(seed=3) == other.reset(seed=3) == started
    for action in actions:
        observation, reward, terminated, _, info = step = env.step(action)
        assert other.step(action) == step
        assert started[0] not in observation
        if terminated:
            break
    assert (reward, terminated, info["won"]) == (1, True, True)
