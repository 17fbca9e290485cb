"""Finds every process that a command has started, and waits for their end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import psutil

T = TypeVar("T")
MARK = "HGPO_TEST_MARK"


class Processes:
    """The processes that were started with `environment`, and all their descendants.

    A process is found by a mark in its environment, which its descendants inherit, also those that
    lost their parents or have a session of their own. `setproctitle`, with which vLLM names its
    engines, overwrites what `/proc` shows of the environment: ``SPT_NOENV`` keeps it from that.
    Processes that overwrite it all the same are found as children of those that were found, and
    remembered from then on: look at `alive()` before you kill their parents.
    """

    def __init__(self) -> None:
        self.environment = {MARK: uuid.uuid4().hex, "SPT_NOENV": "1"}
        self._seen: set[psutil.Process] = set()

    def alive(self) -> list[psutil.Process]:
        """Those that run now, without zombies."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                children.setdefault(process.ppid(), []).append(process)
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    self._seen.add(process)
            except (OSError, psutil.Error):
                continue  # ended meanwhile
        found = [process for process in self._seen if process.is_running()]
        for process in found:  # grows
            new = [p for p in children.get(process.pid, ()) if p not in self._seen]
            self._seen.update(new)
            found.extend(new)
        return [process for process in found if is_alive(process)]

    def command_lines(self) -> list[str]:
        """Of those that run now."""
        return [command_line(process) for process in self.alive()]

    def assert_none(self, seconds: float = 60) -> None:
        """Fail unless all have ended within some seconds."""
        deadline = time.monotonic() + seconds
        while (left := self.command_lines()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, left

    def find(self, words: str) -> psutil.Process:
        """The one process whose command line, or the title that it took, contains `words`."""
        (found,) = [process for process in self.alive() if words in command_line(process)]
        return found


class Command:
    """A running `hgpo`, and all that it has started; as a context manager it leaves none of it.

    Without a context manager, the end of the tests kills what a failed assertion has left.
    """

    started: ClassVar[list["Command"]] = []

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        command: str = "train",
        python: Path = Path(sys.executable),
        folder: Path | None = None,
    ) -> None:
        self.processes = Processes()
        self.log = log
        self.process = subprocess.Popen(
            [str(python), "-m", "hgpo_rllib.cli.main", command, *arguments],
            cwd=folder,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env=os.environ | self.processes.environment,
            start_new_session=True,
            # Background jobs of a shell inherit "ignore", which Python would respect.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def wait_for(self, file: Path, seconds: float = 300) -> Path:
        """Wait until the command has written `file`, whose name may have wildcards; return it."""
        return self.wait_until(lambda: list(Path("/").glob(str(file.absolute())[1:])), seconds)[0]

    def wait_until(self, condition: Callable[[], T], seconds: float = 300) -> T:
        """`wait_until`, which also fails if the command ends before."""

        def check() -> T:
            value = condition()
            assert value or self.process.poll() is None, self.log.read_text()
            return value

        return wait_until(check, seconds, self.log.read_text)

    def survivors(self) -> list[str]:
        """Command lines of its processes that run now."""
        return self.processes.command_lines()

    def assert_nothing_survives(self, seconds: float = 60) -> None:
        """All processes of the command end within some seconds."""
        self.processes.assert_none(seconds)


def wait_until(condition: Callable[[], T], seconds: float, why: Callable[[], str] = str) -> T:
    """Return the first true value of `condition`; fail with `why()` after some seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
    return value


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server((host, 0)) as listener:
        return listener.getsockname()[1]


def assert_gone(*processes: psutil.Process, seconds: float = 20) -> None:
    """They end within seconds. A zombie, which waits for its new parent to notice, has ended."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def command_line(process: psutil.Process) -> str:
    """Of a process, or the title that it has given itself; empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
