"""All text environments fulfill Gymnasium's requirements."""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env

from env_wrappers.errors import DataError
from tests.unit.env_wrappers.conftest import OPTIONS, Make, make_env
from tests.unit.env_wrappers.webshop.webshop_store import write_store

TASK_OPTIONS = {"ALFWorld": "game", "WebShop": "goal", "TextCraft": "goal"}
ADMISSIBLE = {"ALFWorld": "look", "WebShop": "search[towel]", "TextCraft": "inventory"}


def _action(rng: random.Random, info: dict[str, Any]) -> str:
    """Choose an action; one in five is nonsense."""
    offered = [action for action in info["admissible_actions"] if action != "search[<your query>]"]
    others = ["dance", "¡baila! ☕", "search[towel]", "search[odd thing]", "search[<r>]"]
    return rng.choice(others) if not offered or rng.random() < 0.2 else rng.choice(offered)


def _play(env: gymnasium.Env[str, str], seed: int | None, rng: random.Random) -> list[Any]:
    """Return all results of an episode."""
    observation, info = env.reset(seed=seed)
    return [observation, info, *_play_on(env, info, rng)]


def _play_on(env: gymnasium.Env[str, str], info: dict[str, Any], rng: random.Random) -> list[Any]:
    seen: list[Any] = []
    ended = False
    while not ended:
        step = env.step(_action(rng, info))
        seen.append(step)
        ended, info = step[2] or step[3], step[4]
    return seen


def test_each_task_has_a_type(make: Make) -> None:
    env = make()
    tasks = range(env.get_wrapper_attr("num_tasks"))
    types = [env.reset(seed=task)[1]["task_type"] for task in tasks]
    assert env.get_wrapper_attr("task_types") == types


# Rendering


def test_gymnasium_finds_nothing_wrong_with_ansi(make: Make) -> None:
    for mode in (None, "ansi"):
        env = make(render_mode=mode)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped)


def test_the_passive_checker_finds_nothing_wrong(make: Make) -> None:
    env = make(render_mode="ansi", disable_env_checker=False, max_steps=4)
    rng = random.Random(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            _play(env, seed, rng)
            env.render()
        env.close()


def test_render_returns_the_last_observation(make: Make) -> None:
    env = make(render_mode="ansi", max_steps=2)
    with pytest.raises(ResetNeeded):
        env.render()
    with pytest.raises(ResetNeeded, match="nothing to render yet"):
        env.unwrapped.render()
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    for action in ("search[towel]", "dance"):
        observation, *_ = env.step(action)
        assert env.render() == observation, "at the end, too"
    assert env.reset(seed=1)[0] == env.render()


def test_without_a_render_mode_nothing_is_rendered(make: Make) -> None:
    env = make()
    assert env.render_mode is None
    env.reset(seed=0)
    with pytest.warns(UserWarning, match='make the env with render_mode="ansi"'):
        assert env.render() is None


@pytest.mark.parametrize("mode", ["human", "rgb_array", "ANSI", ""])
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's own, before the error
def test_other_render_modes_are_refused(make: Make, mode: str) -> None:
    with pytest.raises(DataError, match=f"unknown render_mode {mode!r}: choose 'ansi'"):
        make(render_mode=mode)


# Episodes


def test_an_episode_is_cut_off_at_max_steps(make: Make) -> None:
    env = make(max_steps=2).unwrapped
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step("dance")
    env.reset(seed=0)
    assert env.step("dance")[2:4] == (False, False)
    assert env.step("dance")[2:4] == (False, True)
    with pytest.raises(ResetNeeded, match="again, after its end"):
        env.step("dance")
    with pytest.raises(DataError, match="max_steps must be at least 1, not 0"):
        make(max_steps=0)


def test_inadmissible_actions_are_counted_by_episode(make: Make, name: str) -> None:
    env = make()
    for _ in range(2):
        infos = [env.reset(seed=0)[1]]
        infos += [env.step(action)[4] for action in ("dance", ADMISSIBLE[name], "sing", "sing")]
        assert [info["inadmissible"] for info in infos] == [False, True, False, True, True]
        assert [info["inadmissible_count"] for info in infos] == [0, 1, 1, 2, 3]


def test_without_a_seed_tasks_are_drawn_reproducibly(make: Make) -> None:
    env = make()

    def draw() -> list[str]:
        env.reset(seed=11)
        return [env.reset()[1]["game"] for _ in range(12)]

    first = draw()
    assert draw() == first
    assert len(set(first)) > 2


def test_an_error_ends_the_episode(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """After data that cannot answer an action, the environment is reset before the next step."""
    env = make().unwrapped
    env.reset(seed=0)

    def fail(action: str) -> None:
        raise DataError("damaged")

    with monkeypatch.context() as patch:
        patch.setattr(env, "_act", fail)
        with pytest.raises(DataError, match="damaged"):
            env.step("look")
    with pytest.raises(ResetNeeded):
        env.step("look")
    env.reset(seed=0)
    env.step("look")


# Bad input


@pytest.mark.parametrize("action", [3, None, b"look", ["look"]])
def test_an_action_must_be_a_string(make: Make, name: str, action: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(TypeError, match=f"an action is a string, not {type(action).__name__}"):
        env.step(action)
    assert env.step(ADMISSIBLE[name])[2:4] == (False, False), "the episode goes on"


@pytest.mark.parametrize("key", ["gmae", "seed", 3])
def test_an_unknown_reset_option_is_an_error(make: Make, name: str, key: object) -> None:
    env = make()
    env.reset(seed=0)
    message = f"unknown option {key!r}: the only one is '{TASK_OPTIONS[name]}'"
    with pytest.raises(DataError, match=message):
        env.reset(seed=0, options={TASK_OPTIONS[name]: 0, key: 0})  # type: ignore[dict-item]
    with pytest.raises(ResetNeeded):
        env.step("look")
    env.reset(options={})


def test_one_of_several_unknown_reset_options_is_named(make: Make) -> None:
    """Also if their types have no order."""
    with pytest.raises(DataError, match="unknown option 3:"):
        make().reset(options={"gmae": 0, 3: 0})  # type: ignore[dict-item]


@pytest.mark.parametrize("options", [3, "game", ["game"], [("game", 0)]])
def test_options_must_be_a_dictionary(make: Make, options: Any) -> None:
    kind = type(options).__name__
    with pytest.raises(DataError, match=f"options is a dictionary, not {kind}"):
        make().reset(options=options)


@pytest.mark.parametrize("value", [1.0, "x", b"0", [0], True, -1, 10**9])
def test_an_option_that_names_no_task(make: Make, name: str, value: object) -> None:
    env, option = make(), TASK_OPTIONS[name]
    messages = rf"a {option} is an index .*, not |no {option} {value} in |cannot read {value}: "
    with pytest.raises(DataError, match=messages):
        env.reset(options={option: value})


@pytest.mark.parametrize("seed", [-1, 1.0, "3", True, [3], np.int64(3)])
def test_a_seed_must_be_an_integer_from_0_on(make: Make, seed: Any) -> None:
    with pytest.raises(DataError, match="a seed is an integer from 0 on, or None, not"):
        make().reset(seed=seed)


# Closing


def test_a_closed_environment_can_only_be_closed_again(make: Make) -> None:
    env = make(render_mode="ansi")
    env.reset(seed=0)
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step("look"), env.render):
        with pytest.raises(ClosedEnvironmentError, match="is closed: make another one"):
            call()


# Copies


@pytest.mark.parametrize("copy", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_as_the_original_would(make: Make, copy: Any) -> None:
    for taken in (0, 1, 4):
        env = make(render_mode="ansi")
        rng = random.Random(taken)
        _, info = env.reset(seed=taken)
        for _ in range(taken):
            *_, info = env.step(_action(rng, info))
        other, its_rng = copy(env), deepcopy(rng)
        assert other.render() == env.render()
        expected = _play_on(env, info, rng)
        assert _play_on(other, info, its_rng) == expected, "the copy has not moved meanwhile"
        assert [_play(other, None, its_rng) for _ in range(4)] == [
            _play(env, None, rng) for _ in range(4)
        ], "the next games are drawn alike, too"


@pytest.mark.parametrize("copy", [deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_has_no_other_episode_than_the_original(make: Make, copy: Any) -> None:
    env = make(max_steps=1)
    with pytest.raises(ResetNeeded):
        copy(env).step("look")
    env.reset(seed=0)
    env.step("look")
    with pytest.raises(ResetNeeded):
        copy(env).step("look")
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        copy(env).reset()


def test_a_pickle_goes_on_in_another_process(make: Make, tmp_path: Path) -> None:
    env = make()
    _, info = env.reset(seed=1)
    *_, info = env.step(_action(random.Random(3), info))
    (tmp_path / "env").write_bytes(pickle.dumps((env, info)))
    done = _in_another_process("go_on", tmp_path / "env")
    assert done.returncode == 0, done.stderr
    expected = _play_on(env, info, random.Random(0)), _play(env, None, random.Random(0))
    assert json.loads(done.stdout) == json.loads(json.dumps(expected))


def test_a_pickle_whose_game_changed_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["ALFWorld"], tmp_path / "games")
    env = make_env("ALFWorld", data=tmp_path / "games")
    _, info = env.reset(seed=0)
    (tmp_path / "env").write_bytes(pickle.dumps((env, info)))
    game, other, _ = env.get_wrapper_attr("games")
    shutil.copy(other, game)
    done = _in_another_process("go_on", tmp_path / "env")
    assert done.returncode == 1
    assert f"DataError: {game} has changed since the episode began" in done.stderr


def test_a_copy_of_a_store_that_changed_is_refused(tmp_path: Path) -> None:
    data = write_store(tmp_path / "store")
    env = make_env("WebShop", data=data)
    env.reset(seed=0)
    pickled = pickle.dumps(env)
    products = data / "items_shuffle.json"
    products.write_text(products.read_text().replace("Towel number 3", "Towel number three"))
    with pytest.raises(DataError, match="is not the store that was pickled"):
        pickle.loads(pickled)


# Threads

_THREADS = 3


def test_environments_in_threads_play_as_they_do_alone(
    name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments in threads of a new process give the same episodes as a single one."""
    monkeypatch.setenv("HGPO_ALFWORLD_CACHE", str(tmp_path / "translations"))
    ignored = shutil.ignore_patterns(".webshop-cache")
    data = shutil.copytree(folders[name], tmp_path / "data", ignore=ignored)
    done = _in_another_process("play_in_threads", name, data)
    assert done.returncode == 0, done.stderr
    alone = [_play_some(name, data, number) for number in range(_THREADS)]
    assert json.loads(done.stdout) == json.loads(json.dumps(alone))


def _play_some(name: str, data: Path, number: int) -> list[Any]:
    env = make_env(name, data=data)
    return [_play(env, number + game, random.Random(number)) for game in range(3)]


# Other processes


def test_importing_the_environments_loads_no_framework() -> None:
    modules = ", ".join(f"env_wrappers.{name.lower()}.env" for name in OPTIONS)
    code = (
        f"import sys, env_wrappers.alfworld.generator, {modules}; "
        "print([m for m in ('ray', 'torch', 'spacy', 'hgpo_rllib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _in_another_process(function: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = f"from tests.unit.env_wrappers.test_text_env import {function}; {function}()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # no order may depend on hashes of strings
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def go_on() -> None:
    """Play a pickled episode to its end, then a new episode."""
    env, info = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(json.dumps([_play_on(env, info, random.Random(0)), _play(env, None, random.Random(0))]))


def play_in_threads() -> None:
    """Play in several threads that start at the same time."""
    name, data = sys.argv[1], Path(sys.argv[2])
    start = threading.Barrier(_THREADS)

    def work(number: int) -> list[Any]:
        start.wait()
        return _play_some(name, data, number)

    with ThreadPoolExecutor(_THREADS) as pool:
        print(json.dumps(list(pool.map(work, range(_THREADS)))))
