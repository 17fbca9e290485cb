"""Find all processes that a command has started, and wait for their end."""

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

    A process is found by a mark in its environment. Descendants inherit it, even if they lost their
    parents or started their own session. `setproctitle`, with which vLLM names its engines,
    overwrites the environment in `/proc` unless ``SPT_NOENV`` is set. Processes that overwrite it
    anyway are found as children of known processes and remembered: call `alive()` before you kill
    their parents.
    """

    def __init__(self) -> None:
        self.environment = {MARK: uuid.uuid4().hex, "SPT_NOENV": "1"}
        self._seen: set[psutil.Process] = set()

    def alive(self) -> list[psutil.Process]:
        """Return the running processes, without zombies."""
        mark = f"{MARK}={self.environment[MARK]}".encode()
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                children.setdefault(process.ppid(), []).append(process)
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes():
                    self._seen.add(process)
            except (OSError, psutil.Error):
                continue  # has ended
        found = [process for process in self._seen if process.is_running()]
        for process in found:  # grows during the loop
            new = [p for p in children.get(process.pid, ()) if p not in self._seen]
            self._seen.update(new)
            found.extend(new)
        return [process for process in found if is_alive(process)]

    def command_lines(self) -> list[str]:
        """Return the command lines of the running processes."""
        return [command_line(process) for process in self.alive()]

    def assert_none(self, seconds: float = 60) -> None:
        """Fail unless all processes end within some seconds."""
        deadline = time.monotonic() + seconds
        while (left := self.command_lines()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, left

    def kill(self) -> None:
        """Kill the running processes."""
        for process in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def find(self, words: str) -> psutil.Process:
        """Return the only process whose command line or title contains `words`."""
        (found,) = [process for process in self.alive() if words in command_line(process)]
        return found


class Command:
    """A running `hgpo` command with all processes that it starts; `__exit__` kills all of them.

    Without a context manager, they are killed at the end of the test session.
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
            # Background jobs of a shell inherit "ignore", which Python would keep.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.processes.kill()
        self.process.wait()

    def wait_for(self, file: Path, seconds: float = 300) -> Path:
        """Wait until the command has written `file`, whose name may have wildcards; return it."""
        return self.wait_until(lambda: list(Path("/").glob(str(file.absolute())[1:])), seconds)[0]

    def wait_until(self, condition: Callable[[], T], seconds: float = 300) -> T:
        """Call `wait_until`, but also fail if the command ends first."""

        def check() -> T:
            value = condition()
            assert value or self.process.poll() is None, self.log.read_text()
            return value

        return wait_until(check, seconds, self.log.read_text)

    def assert_nothing_survives(self, seconds: float = 60) -> None:
        """Fail unless all processes of the command end within some seconds."""
        self.processes.assert_none(seconds)


def wait_until(condition: Callable[[], T], seconds: float, why: Callable[[], str] = str) -> T:
    """Return the first true value of `condition`; fail with `why()` after some seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
    return value


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was just free."""
    with socket.create_server((host, 0)) as listener:
        return listener.getsockname()[1]


def assert_gone(*processes: psutil.Process) -> None:
    """Fail unless the processes end within 20 seconds; zombies count as ended."""
    wait_until(lambda: not any(map(is_alive, processes)), 20, lambda: str(processes))


def command_line(process: psutil.Process) -> str:
    """Return the command line or title of a process, or an empty string if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is running and not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
