"""The Gymnasium environment of ALFWorld."""

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import env_wrappers  # noqa: F401 (registers the environment)
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.errors import DataError

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
PLAY = """
import json, random, sys
from env_wrappers.alfworld.env import ALFWorldEnv

env, rng, seen = ALFWorldEnv(sys.argv[1], max_steps=6), random.Random(1), []
for seed in (5, None, None, None):
    observation, info = env.reset(seed=seed)
    ended = False
    while not ended:
        seen.append((observation, info))
        observation, reward, terminated, truncated, info = env.step(
            rng.choice(info["admissible_actions"])
        )
        ended = terminated or truncated
json.dump(seen, sys.stdout)
"""


def _solution(game: Path) -> list[str]:
    return json.loads(game.read_text(encoding="utf-8"))["walkthrough"]


@pytest.fixture
def env(generated_games: Path) -> ALFWorldEnv:
    return ALFWorldEnv(generated_games)


def test_gymnasium_finds_nothing_wrong(generated_games: Path) -> None:
    env = gymnasium.make("hgpo/ALFWorld-v0", data=generated_games)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, env_wrappers.alfworld.env, env_wrappers.alfworld.generator; "
        "print([m for m in ('ray', 'torch', 'hgpo_rllib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_task_has_a_type(env: ALFWorldEnv) -> None:
    types = [env.reset(seed=task)[1]["task_type"] for task in range(env.num_tasks)]
    assert env.task_types == types


def test_a_seed_is_an_index_into_the_games(env: ALFWorldEnv) -> None:
    assert env.num_tasks == len(env.games) == 3
    for seed in range(5):
        _, info = env.reset(seed=seed)
        assert info["game"] == env.games[seed % 3]


def test_the_same_seed_gives_the_same_episode(generated_games: Path) -> None:
    def play() -> list[object]:
        env = ALFWorldEnv(generated_games)
        observation, info = env.reset(seed=4)
        seen: list[object] = [observation, info]
        for step in range(6):
            actions = info["admissible_actions"]
            observation, *results, info = env.step(actions[step % len(actions)])
            seen += [observation, results, info]
        return seen

    assert play() == play()


def test_two_processes_play_the_same_sequence(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strings hash differently in each process: no order may depend on it."""
    command = [sys.executable, "-c", PLAY, str(generated_games)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first = json.loads(there.stdout)
    monkeypatch.setattr(sys, "argv", ["", str(generated_games)])
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(PLAY, {})
    assert first == json.loads(here.getvalue())
    assert len(first) > 6
    assert len({info["game"] for _, info in first}) > 1


def test_a_game_can_be_asked_for(env: ALFWorldEnv) -> None:
    assert env.reset(options={"game": 2})[1]["game"] == env.games[2]
    assert env.reset(seed=0, options={"game": env.games[1]})[1]["game"] == env.games[1]
    assert env.reset(options={"game": Path(env.games[0])})[1]["game"] == env.games[0]
    with pytest.raises(DataError, match="no game 3: there are 3"):
        env.reset(options={"game": 3})
    with pytest.raises(ResetNeeded):
        env.step("look")


def test_without_a_seed_games_are_drawn_reproducibly(env: ALFWorldEnv) -> None:
    def draw() -> list[str]:
        env.reset(seed=11)
        return [env.reset()[1]["game"] for _ in range(12)]

    first = draw()
    assert draw() == first
    assert set(first) == set(env.games)


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


def test_an_episode_is_cut_off_at_max_steps(generated_games: Path) -> None:
    env = ALFWorldEnv(generated_games, max_steps=2)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step("look")
    env.reset(seed=0)
    assert env.step("look")[2:4] == (False, False)
    assert env.step("look")[2:4] == (False, True)
    with pytest.raises(ResetNeeded, match="again, after its end"):
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


def test_inadmissible_actions_are_counted_by_episode(env: ALFWorldEnv) -> None:
    _, info = env.reset(seed=0)
    assert info["inadmissible_count"] == 0
    counts = [env.step(a)[4]["inadmissible_count"] for a in ("dance", "look", "sing", "sing")]
    assert counts == [1, 1, 2, 3]
    assert env.reset(seed=0)[1]["inadmissible_count"] == 0


def test_the_info_has_the_same_keys_and_kinds_at_every_step(env: ALFWorldEnv) -> None:
    for info in (env.reset(seed=0)[1], env.step("look")[4]):
        assert {key: type(value) for key, value in info.items()} == INFO


@pytest.mark.parametrize("action", [3, None, b"look", ["look"]])
def test_an_action_must_be_a_string(env: ALFWorldEnv, action: object) -> None:
    env.reset(seed=0)
    with pytest.raises(TypeError, match=f"an action is a string, not {type(action).__name__}"):
        env.step(action)  # type: ignore[arg-type]
    assert env.step("look")[2:4] == (False, False), "the episode goes on"


def test_max_steps_must_be_positive(generated_games: Path) -> None:
    with pytest.raises(DataError, match="max_steps"):
        ALFWorldEnv(generated_games, max_steps=0)
