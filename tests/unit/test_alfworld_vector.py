"""The vector environment plays what single environments play, in groups and in processes."""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

import env_wrappers  # noqa: F401 (registers the environment)
from env_wrappers.alfworld.vector import ALFWorldVectorEnv
from env_wrappers.errors import DataError

SCRIPT = """
import sys, time
from env_wrappers.alfworld.vector import ALFWorldVectorEnv

def main():
    env = ALFWorldVectorEnv(1, data=sys.argv[1], workers=1)
    env.reset(seed=0)
    print(*(crew._process.pid for crew in env._crews), flush=True)
    {end}

{start}
"""
MAIN = 'if __name__ == "__main__": main()'


def _solution(game: str) -> list[str]:
    return json.loads(Path(game).read_text(encoding="utf-8"))["walkthrough"]


def _make(data: Path, num_envs: int, **settings: Any) -> ALFWorldVectorEnv:
    return ALFWorldVectorEnv(num_envs, data=data, **settings)


@pytest.fixture
def two_workers(generated_games: Path) -> Iterator[ALFWorldVectorEnv]:
    env = _make(generated_games, 4, group_size=2, workers=2)
    yield env
    env.close()


def _play(env: ALFWorldVectorEnv, seed: Any = 1, steps: int = 6) -> list[Any]:
    """Return all that a vector environment says to random actions."""
    rng = random.Random(0)
    observations, infos = env.reset(seed=seed)
    seen: list[Any] = [observations, {key: list(value) for key, value in infos.items()}]
    for _ in range(steps):
        actions = [rng.choice(offered or [""]) for offered in infos["admissible_actions"]]
        observations, rewards, terminations, truncations, infos = env.step(actions)
        seen += [observations, list(rewards), list(terminations), list(truncations)]
        seen.append({key: list(value) for key, value in infos.items()})
    return seen


# --- Gymnasium's conventions --------------------------------------------------------------------


def test_gymnasium_makes_it(generated_games: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make_vec(
            "hgpo/ALFWorld-v0",
            num_envs=4,
            vectorization_mode="vector_entry_point",
            data=generated_games,
            group_size=2,
        )
    assert isinstance(env, ALFWorldVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    observations, infos = env.reset(seed=0)
    assert observations in env.observation_space
    assert env.action_space.sample() in env.action_space
    observations, rewards, terminations, truncations, infos = env.step(["look"] * 4)
    assert observations in env.observation_space
    assert rewards.shape == terminations.shape == truncations.shape == (4,)
    assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, bool, bool)
    assert infos["inadmissible"].dtype == infos["_inadmissible"].dtype == bool
    assert infos["inadmissible_count"].shape == (4,)
    assert infos["_admissible_actions"].all()
    assert isinstance(infos["admissible_actions"][0], list)


def test_it_plays_what_gymnasiums_own_vector_plays(generated_games: Path) -> None:
    """Groups of one: the same games, observations, rewards and infos, also drawn games."""
    theirs = gymnasium.make_vec(
        "hgpo/ALFWorld-v0",
        num_envs=3,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
        data=generated_games,
        max_steps=6,
    )
    ours = _make(generated_games, 3, max_steps=6)
    for seed in (1, None, [2, None, 0], None):
        assert _play(ours, seed) == _play(theirs, seed)  # type: ignore[arg-type]


def test_workers_play_the_same(generated_games: Path) -> None:
    settings: dict[str, Any] = {"group_size": 2, "max_steps": 5}
    here = _make(generated_games, 6, **settings)
    there = _make(generated_games, 6, workers=2, **settings)
    try:
        assert [len(crew._members) for crew in there._crews] == [4, 2], "whole groups"  # type: ignore[union-attr]
        for seed in (2, None):
            assert _play(here, seed, steps=5) == _play(there, seed, steps=5)
    finally:
        there.close()


def test_no_more_workers_than_groups(generated_games: Path) -> None:
    env = _make(generated_games, 2, group_size=2, workers=3)
    assert len(env._crews) == 1
    env.close()


# --- groups -------------------------------------------------------------------------------------


def test_a_group_starts_with_one_game_and_one_observation(generated_games: Path) -> None:
    env = _make(generated_games, 6, group_size=3)
    observations, infos = env.reset(seed=2)
    assert list(infos["game"]) == [env.games[2]] * 3 + [env.games[0]] * 3
    assert len(set(observations[:3])) == len(set(observations[3:])) == 1
    drawn = [env.reset()[1]["game"].reshape(2, 3) for _ in range(8)]
    assert all((games == games[:, :1]).all() for games in drawn)
    assert len({tuple(games[:, 0]) for games in drawn}) > 1


def test_games_and_seeds_are_named_for_all_or_for_each_group(generated_games: Path) -> None:
    env = _make(generated_games, 4, group_size=2)

    def played(**arguments: Any) -> list[str]:
        return [Path(game).as_posix() for game in env.reset(**arguments)[1]["game"][::2]]

    first, second, third = env.games
    assert played(seed=[2, 1]) == [third, second]
    assert played(options={"game": 1}) == [second, second]
    assert played(options={"game": [2, first]}) == [third, first]
    assert played(options={"game": np.array([0, 2])}) == [first, third]
    assert played(seed=0, options={"game": [None, 0]}) == [first, first]
    with pytest.raises(DataError, match="seed has 4 entries: give one for each of 2 groups"):
        env.reset(seed=[0, 0, 1, 1])
    with pytest.raises(DataError, match="no game 3: there are 3"):
        env.reset(options={"game": [0, 3]})


def test_a_member_that_is_done_rests_until_its_group_is_reset(generated_games: Path) -> None:
    env = _make(generated_games, 4, group_size=2, max_steps=50)
    observations, infos = env.reset(options={"game": [0, 1]})
    solution = _solution(infos["game"][0])
    for command in solution:
        observations, rewards, terminations, truncations, infos = env.step([command] + ["look"] * 3)
    assert rewards.tolist() == [10.0, 0.0, 0.0, 0.0]
    assert terminations.tolist() == [True, False, False, False]
    assert infos["won"].tolist() == [True, False, False, False]
    last = observations[0]

    observations, rewards, terminations, truncations, infos = env.step([None, *["dance"] * 3])  # type: ignore[list-item]
    assert (observations[0], rewards[0], terminations[0]) == (last, 0.0, True)
    assert infos["_won"].tolist() == [False, True, True, True]
    assert infos["inadmissible_count"].tolist()[1:] == [1, 1, 1]

    others = observations[2:]
    mask = np.array([True, True, False, False])
    observations, infos = env.reset(seed=[2, 0], options={"reset_mask": mask})
    assert observations[2:] == others
    assert infos["_game"].tolist() == mask.tolist()
    assert list(infos["game"]) == [env.games[2]] * 2 + [None] * 2
    *_, terminations, truncations, infos = env.step(["look"] * 4)
    assert not (terminations | truncations).any()
    assert infos["inadmissible_count"].tolist() == [0, 0, 1, 1], "the others went on"


def test_a_step_after_the_end_of_all_is_an_error(generated_games: Path) -> None:
    env = _make(generated_games, 2, max_steps=1)
    with pytest.raises(ResetNeeded, match=r"in environments \[0, 1\]: call reset\(\) first"):
        env.step(["look"] * 2)
    env.reset(seed=0)
    assert env.step(["look"] * 2)[3].tolist() == [True, True]
    with pytest.raises(ResetNeeded, match="no episode is running in any"):
        env.step(["look"] * 2)
    env.reset()
    env.step(["look"] * 2)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 5, "group_size": 2}, "num_envs=5 is no multiple of group_size=2"),
        ({"num_envs": 0}, "num_envs=0 is no multiple of group_size=1"),
        ({"num_envs": 2, "group_size": 0}, "group_size=0"),
        ({"num_envs": 2, "workers": -1}, "workers must be at least 0, not -1"),
        ({"num_envs": 2, "max_steps": 0}, "max_steps must be at least 1, not 0"),
        ({"num_envs": 2, "split": "tset"}, "json_2.1.1/tset is not a directory"),
    ],
)
def test_bad_settings_are_refused(
    generated_games: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        ALFWorldVectorEnv(data=generated_games, **settings)


@pytest.mark.parametrize(
    "mask", [[True, False, False, False], [True, True], [1, 1, 0, 0]], ids=["part", "short", "ints"]
)
def test_a_reset_mask_marks_whole_groups(generated_games: Path, mask: list[Any]) -> None:
    env = _make(generated_games, 4, group_size=2)
    with pytest.raises(DataError, match="reset_mask must"):
        env.reset(options={"reset_mask": np.array(mask)})


def test_a_bad_action_moves_nobody(generated_games: Path) -> None:
    env = _make(generated_games, 2, max_steps=2)
    env.reset(seed=0)
    with pytest.raises(TypeError, match=r"an action is a string, not int \(environment 1\)"):
        env.step(["look", 3])  # type: ignore[list-item]
    for actions in ("no", ["look"], ["look"] * 3):
        with pytest.raises(ValueError, match="give 2 actions, one for each environment"):
            env.step(actions)
    assert not env.step(["look"] * 2)[3].any()
    assert env.step(["look"] * 2)[3].all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_game_is_named_and_the_rest_goes_on(
    generated_games: Path, tmp_path: Path, workers: int
) -> None:
    game = tmp_path / "pick_and_place_simple-Mug-None-Desk-301" / "trial_1" / "game.tw-pddl"
    game.parent.mkdir(parents=True)
    game.write_text('{"solvable": true')
    env = _make(generated_games, 2, workers=workers)
    try:
        env.reset(seed=0)
        with pytest.raises(DataError, match=f"cannot load {game}: JSONDecodeError"):
            env.reset(options={"game": [0, game]})
        with pytest.raises(ResetNeeded, match=r"in environments \[0, 1\]: call reset"):
            env.step(["look"] * 2)
        env.reset(seed=0)
        assert env.step(["x" * 100_000] * 2)[0] == ("Nothing happens.",) * 2
    finally:
        env.close()


# --- processes ----------------------------------------------------------------------------------


def test_an_unexpected_error_in_a_worker_comes_with_its_traceback(generated_games: Path) -> None:
    env = _make(generated_games, 1, workers=1)
    try:
        (crew,) = env._crews
        crew.send("no_such_call", {0: "look"})
        answer = crew.receive()
        assert isinstance(answer, RuntimeError)
        assert "in a worker process" in str(answer)
        assert "AttributeError" in str(answer)
    finally:
        env.close()


def test_a_worker_that_died_is_reported_and_ends_all(two_workers: ALFWorldVectorEnv) -> None:
    two_workers.reset(seed=0)
    processes = [crew._process for crew in two_workers._crews]  # type: ignore[union-attr]
    processes[1].kill()
    with pytest.raises(RuntimeError, match="a worker process ended with exit code -9"):
        two_workers.step(["look"] * 4)
    assert [process.is_alive() for process in processes] == [False, False]
    with pytest.raises(ClosedEnvironmentError, match="make others"):
        two_workers.reset()


def test_an_interrupted_step_leaves_no_stale_answer(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = _make(generated_games, 2)
    env.reset(seed=0)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(env._crews[0], "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        env.step(["look"] * 2)
    assert env.closed
    with pytest.raises(ClosedEnvironmentError):
        env.step(["look"] * 2)


def test_close_ends_the_workers(two_workers: ALFWorldVectorEnv) -> None:
    processes = [crew._process for crew in two_workers._crews]  # type: ignore[union-attr]
    two_workers.reset(seed=0)
    two_workers.close()
    two_workers.close()
    assert [process.exitcode for process in processes] == [0, 0]
    with pytest.raises(ClosedEnvironmentError):
        two_workers.reset()


def test_the_workers_end_when_nobody_holds_them_any_more(generated_games: Path) -> None:
    env = _make(generated_games, 1, workers=1)
    process = env._crews[0]._process  # type: ignore[union-attr]
    del env
    gc.collect()
    assert process.exitcode is not None


@pytest.mark.parametrize(
    ("end", "returncode"),
    [
        ("pass", 0),
        ("raise ValueError('mine')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(0, signal.SIGINT); time.sleep(5)", -2),
    ],
    ids=["end", "exception", "killed", "Ctrl-C"],
)
def test_workers_end_with_the_program(
    generated_games: Path, tmp_path: Path, end: str, returncode: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=end, start=MAIN))
    done = _run(script, generated_games)
    assert done.returncode == returncode, done.stderr
    assert "SpawnProcess" not in done.stderr, "a worker's own traceback"
    for pid in map(int, done.stdout.split()):
        _wait_for_the_end_of(pid)


def test_a_script_without_a_main_guard_is_told_so(generated_games: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end="pass", start="main()"))
    done = _run(script, generated_games)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: a worker process ended with exit code 1: see what it ")
    assert '`if __name__ == "__main__":`' in last


def _run(script: Path, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), str(data)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        start_new_session=True,  # a Ctrl-C for this group of processes alone
        capture_output=True,
        text=True,
        timeout=120,
    )


def _wait_for_the_end_of(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail(f"process {pid} is still there")
