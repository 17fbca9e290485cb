"""The Gymnasium environment of ALFWorld."""

import json
from pathlib import Path

import pytest
from gymnasium.error import ResetNeeded

import env_wrappers  # noqa: F401 (registers the environment)
from env_wrappers.alfworld.env import ALFWorldEnv

INFO = {
    "admissible_actions": list,
    "won": bool,
    "task_type": str,
    "game": str,
    "goal": str,
    "state_hash": str,
    "inadmissible": bool,
    "inadmissible_count": int,
}


def _solution(game: Path) -> list[str]:
    return json.loads(game.read_text(encoding="utf-8"))["walkthrough"]


@pytest.fixture
def env(generated_games: Path) -> ALFWorldEnv:
    return ALFWorldEnv(generated_games)


def test_members_of_a_group_share_the_engine_but_not_the_episode(generated_games: Path) -> None:
    first, second = ALFWorldEnv(generated_games), ALFWorldEnv(generated_games)
    start, info = first.reset(seed=0)
    assert second.reset(seed=0)[0] == start
    assert first._engine is second._engine
    moves = [a for a in info["admissible_actions"] if a.startswith("go to ")]
    one = first.step(moves[0])
    two = second.step(moves[1])
    assert one[0] != two[0]
    assert one[4]["state_hash"] != two[4]["state_hash"]
    assert first.step(moves[1])[0] == two[0]


def test_the_introduction_states_the_task(env: ALFWorldEnv) -> None:
    observation, info = env.reset(seed=0)
    assert observation.startswith("You are in the middle of a room.")
    assert observation.endswith(f"Your task is to: {info['goal']}")
    assert "help" not in info["admissible_actions"]
    assert info["admissible_actions"] == sorted(info["admissible_actions"])
    assert not info["won"]
    assert not info["inadmissible"]


def test_success_ends_the_episode_with_the_reward(generated_games: Path) -> None:
    env = ALFWorldEnv(generated_games, "valid_unseen", success_reward=3.0)
    _, info = env.reset(seed=1)
    results = [env.step(action) for action in _solution(Path(info["game"]))]
    assert [reward for _, reward, *_ in results] == [0.0] * (len(results) - 1) + [3.0]
    assert [done for _, _, done, *_ in results] == [False] * (len(results) - 1) + [True]
    assert not any(truncated for _, _, _, truncated, _ in results)
    assert results[-1][4]["won"]
    with pytest.raises(ResetNeeded):
        env.step("look")


def test_success_at_the_last_step_is_no_truncation(env: ALFWorldEnv) -> None:
    solution = _solution(Path(env.games[0]))
    env._max_steps = len(solution)
    env.reset(seed=0)
    assert [env.step(action)[2:4] for action in solution][-1] == (True, False)


@pytest.mark.parametrize(
    "action",
    ["", "\n", "dance", "¡baila! ☕\x00", "\ud800", "x" * 100_000, "go to " * 17_000],
    ids=["empty", "line", "word", "any script", "half a character", "100 kB", "100 kB of words"],
)
def test_any_string_is_a_safe_action(env: ALFWorldEnv, action: str) -> None:
    _, before = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation == "Nothing happens."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["inadmissible"]
    assert info["inadmissible_count"] == 1
    assert info["state_hash"] == before["state_hash"]


def test_admissible_means_offered_before_the_step(env: ALFWorldEnv) -> None:
    _, info = env.reset(seed=0)
    for action in info["admissible_actions"]:
        env.reset(seed=0)
        assert not env.step(f" {action}\n")[4]["inadmissible"]
    env.reset(seed=0)
    observation, *_, info = env.step("help")
    assert "Available commands" in observation
    assert info["inadmissible"], "the engine accepts it, but it is never an admissible action"


def test_the_info_has_the_same_keys_and_kinds_at_every_step(env: ALFWorldEnv) -> None:
    for info in (env.reset(seed=0)[1], env.step("look")[4]):
        assert {key: type(value) for key, value in info.items()} == INFO
