"""Exit of the processes of `hgpo serve`, with other commands instead of vLLM."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server import openai_server
from tests.paths import ROOT
from tests.processes import assert_gone, is_alive, wait_until

# Ignores SIGTERM, as does its child, and prints the ids of both.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(os.getpid(), child, file=sys.stderr, flush=True)
time.sleep(60)
"""
# Runs the stubborn process as `hgpo serve` runs vLLM's server.
COMMAND = f"""
import os, sys, time
from hgpo_rllib.policy_server import openai_server
command = [sys.executable, "-c", {STUBBORN!r}]
with openai_server.supervised(command, dict(os.environ), sys.argv[1]):
    time.sleep(60)
"""
# Replaces vLLM's server: starts a process as vLLM starts its engine.
SCRIPT = """
import multiprocessing, os, sys, time

def engine():
    print(os.getpid(), *sys.argv, flush=True)
    time.sleep(60)

def main():
    process = multiprocessing.get_context("spawn").Process(target=engine)
    process.start()
    process.join()
"""
# Drains for a minute, and creates a file when it is ready.
SLOW = """
import pathlib, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(60))
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def start_stubborn(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def read_ids(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the stubborn process and its child."""
    assert process.stderr is not None
    return [psutil.Process(int(word)) for word in process.stderr.readline().split()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file, which the supervisor must delete."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").touch()
    return folder


class TestSupervisor:
    @pytest.fixture
    def supervisor(self, folder: Path) -> Iterator["subprocess.Popen[str]"]:
        """Yield the supervisor of a stubborn process."""
        module = "hgpo_rllib.policy_server.supervisor"
        command = [sys.executable, "-m", module, str(folder), sys.executable, "-c", STUBBORN]
        with start_stubborn(command) as process:
            yield process

    def test_the_pipe_is_closed(self, supervisor: "subprocess.Popen[str]", folder: Path) -> None:
        """Closing the pipe kills the stubborn processes and deletes the folder."""
        server, child = read_ids(supervisor)
        assert is_alive(server)
        assert is_alive(child)
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        assert supervisor.wait(30) == 128 + signal.SIGKILL
        assert_gone(server, child)
        assert not folder.exists()

    def test_the_server_is_killed(self, supervisor: "subprocess.Popen[str]", folder: Path) -> None:
        """If the server is killed, the supervisor ends its child and deletes the folder."""
        server, child = read_ids(supervisor)
        server.kill()
        assert supervisor.wait(30) == 128 + signal.SIGKILL
        assert_gone(child)
        assert not folder.exists()

    def test_the_supervisor_is_killed(self, supervisor: "subprocess.Popen[str]") -> None:
        server, _ = processes = read_ids(supervisor)
        supervisor.kill()
        try:
            assert_gone(server)
        finally:
            for process in processes:  # only the server has set PR_SET_PDEATHSIG
                if is_alive(process):
                    process.kill()

    def test_sigterm_drains(self, folder: Path) -> None:
        """SIGTERM lets the server drain and exit by itself."""
        script = (
            "import signal, sys, time\n"
            "def drain(number, frame):\n"
            "    time.sleep(0.5)\n"
            "    sys.exit(7)\n"
            "signal.signal(signal.SIGUSR1, drain)\n"
            "print(1, file=sys.stderr, flush=True)\n"
            "time.sleep(60)\n"
        )
        module = "hgpo_rllib.policy_server.supervisor"
        command = [sys.executable, "-m", module, str(folder), sys.executable, "-c", script]
        with start_stubborn(command) as process:
            read_ids(process)
            process.terminate()
            assert process.wait(30) == 7


class TestCommand:
    def test_the_command_is_killed(self, folder: Path) -> None:
        """If the command is killed, its processes end and the folder is deleted."""
        with start_stubborn([sys.executable, "-c", COMMAND, str(folder)]) as command:
            processes = read_ids(command)
            command.kill()
        assert_gone(*processes)
        wait_until(lambda: not folder.exists(), 20)

    def test_a_server_that_does_not_start(self, folder: Path) -> None:
        command = [sys.executable, "-c", "raise SystemExit(3)"]
        with (
            pytest.raises(RunStoppedError, match="exit code 3"),
            openai_server.supervised(command, dict(os.environ), str(folder)) as server,
        ):
            openai_server.wait_until_healthy(server, "http://127.0.0.1:9")

    @pytest.mark.usefixtures("signals")
    @pytest.mark.parametrize("second_signal", [False, True])
    def test_running_requests_are_not_waited_for_forever(
        self, folder: Path, tmp_path: Path, second_signal: bool
    ) -> None:
        """Draining ends at the timeout or at a second Ctrl-C."""
        command = [sys.executable, "-c", SLOW, str(tmp_path / "ready")]
        with openai_server.supervised(command, dict(os.environ), str(folder)) as server:
            wait_until((tmp_path / "ready").exists, 60)
            start = time.monotonic()
            if second_signal:
                interrupt = (os.getpid(), signal.SIGINT)
                threading.Timer(0.2, os.kill, interrupt).start()
            openai_server.drain(server, 30 if second_signal else 0.2)
            assert server.poll() is None
        assert time.monotonic() - start < 20
        assert server.returncode == 128 + signal.SIGKILL


def test_the_engine_ends_with_the_server(tmp_path: Path) -> None:
    """A spawned engine ends with the server, as it imports the server's main module."""
    found = importlib.util.find_spec("vllm.entrypoints.launchers.api_server.entry")
    assert found is not None, "the installed vLLM has the module that this test replaces"
    package = tmp_path / "vllm" / "entrypoints" / "launchers" / "api_server"
    package.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()  # found before the package that is installed
    (package / "entry.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "-m", "hgpo_rllib.policy_server.vllm_serve", "--model=MODEL", "--port=1"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        engine, _, *words = server.stdout.readline().split()
        assert words == ["--model=MODEL", "--port=1"]
        server.kill()
    assert_gone(psutil.Process(int(engine)))
