"""SIGTERM ends a command as Ctrl-C does, whatever the inherited state of SIGINT."""

import fcntl
import multiprocessing.util
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from env_wrappers.datasets import new_directory, new_file
from env_wrappers.processes import process_pool
from hgpo_rllib.run.interrupt import sigterm_as_interrupt
from tests.paths import ROOT
from tests.processes import Command, assert_gone

# Not from `tests.unit.cli`, whose imports would slow the processes that import this file.
POCKET = ROOT / "tuned_examples" / "alfworld_pocket.yaml"
# Minutes of work, so that the signal arrives before the end.
GENERATE = ["data", "generate", "alfworld", "games", "games.train=2000"]
TRAIN = ["train", str(POCKET), "cache=.", "games.train=2000"]
DEMONSTRATE = [
    *("train", str(POCKET), "cache=.", "games.train=1", "games.valid_seen=1"),
    *("games.valid_unseen=1", "games.rooms=[bathroom]", "warm_start.games=2000"),
]
WORK = """
import sys, time
from tests.unit.run import test_interrupt
test_interrupt.work_in_pool()
"""


def terminate() -> None:
    """Send SIGTERM to this process and wait for the handler."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


@pytest.mark.parametrize("inherited", ["nothing", "ignored", "blocked"])
def test_sigterm_interrupts(inherited: str, signals: None) -> None:
    """SIGTERM works even if SIGINT is ignored (shell jobs) or blocked (processes of Ray)."""
    if inherited == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if inherited == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        terminate()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("command", "partial", "said"),
    [
        (GENERATE, "games.partial-*", "generating data: interrupted; nothing was written"),
        pytest.param(  # both import torch and Ray first
            *(TRAIN, "*-games-*.partial-*", "interrupted before the first iteration; start again"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(DEMONSTRATE, "pocket-model-*-demonstrations.partial-*", "finished are kept"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["hgpo data generate", "hgpo train: games", "hgpo train: demonstrations"],
)
def test_sigterm_while_data_are_made(
    tmp_path: Path, command: list[str], partial: str, said: str
) -> None:
    """The command exits with code 130 and one line; no partial data and no process remain."""
    name, *arguments = command
    with Command(arguments, tmp_path / "log.txt", name, folder=tmp_path) as running:
        running.wait_for(tmp_path / partial)
        children = psutil.Process(running.process.pid).children
        running.wait_until(lambda: len(children()) > 2)  # two workers and the resource tracker
        running.process.terminate()
        assert running.process.wait(60) == 130, running.log.read_text()
        running.assert_nothing_survives(20)
    output = running.log.read_text()
    (line,) = [line for line in output.splitlines() if "interrupted" in line]
    assert said in line
    assert "Traceback" not in output, output
    assert list(tmp_path.glob("*.partial-*")) == []


def test_an_interrupt_while_a_worker_starts(
    signals: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker that is interrupted during its start ends without a traceback."""
    spawn, started = multiprocessing.util.spawnv_passfds, list[psutil.Process]()

    def spawn_and_interrupt(path: Any, arguments: Any, descriptors: Any) -> int:
        pid = spawn(path, arguments, descriptors)
        if "--multiprocessing-fork" in arguments:  # not the resource tracker
            started.append(psutil.Process(pid))
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", spawn_and_interrupt)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt(), process_pool(1) as pool:
        pool.submit(int)
    assert len(started) == 1
    assert_gone(*started)
    assert "Traceback" not in capfd.readouterr().err


def test_an_interrupt_while_work_is_submitted() -> None:
    """A process ends if it is interrupted right after `submit` has acquired a lock.

    Otherwise it would wait forever for the pool's thread, which waits for the lock.
    """
    code = "from tests.unit.run import test_interrupt as t; t.interrupt_submit()"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == "interrupted\n", ended.stderr


def interrupt_submit() -> None:
    """Send SIGTERM after `submit` has acquired the lock of the pool's queue of work."""
    enter = threading.Condition.__enter__

    def enter_and_interrupt(condition: threading.Condition) -> bool:
        acquired = enter(condition)
        if sys._getframe(1).f_code is queue.Queue.put.__code__:
            os.kill(os.getpid(), signal.SIGTERM)
        return acquired

    try:
        with sigterm_as_interrupt(), process_pool(1) as pool:
            pool.submit(int)  # starts the pool's thread
            setattr(threading.Condition, "__enter__", enter_and_interrupt)  # noqa: B010
            pool.submit(int)
    except KeyboardInterrupt:
        print("interrupted")


def work_in_pool() -> None:
    """Run tasks that take minutes."""
    with process_pool(2) as pool:
        list(pool.map(work_long, range(4)))


def work_long(task: int) -> None:
    os.write(1, b"begun\n")  # a single write, as the other worker writes at the same time
    time.sleep(120)


def fail_in_pool(workers: list[psutil.Process]) -> None:
    with process_pool(1) as pool:
        workers.append(psutil.Process(pool.submit(os.getpid).result()))
        raise ValueError("failed")


def test_a_pool_that_fails_terminates_only_its_workers() -> None:
    """Other child processes keep running."""
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(120,))
    other.start()
    try:
        workers: list[psutil.Process] = []
        with pytest.raises(ValueError, match="failed"):
            fail_in_pool(workers)
        assert_gone(*workers)
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(signum: int) -> None:
    """Workers end at once and print no traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", WORK],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "begun\n"
        started = psutil.Process(process.pid).children()
        assert len(started) == 3, "two workers and multiprocessing's own"
        if signum == signal.SIGINT:
            os.killpg(process.pid, signum)  # as a terminal does
        else:
            process.kill()
        assert_gone(*started)
        _, errors = process.communicate(timeout=30)
    assert errors.count("Traceback") <= 1, "of the parent"


class TestPartialData:
    """Partial data of killed and of running processes."""

    def test_a_file_does_not_replace_a_pipe(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="Not a regular file"), new_file(tmp_path / "pipe"):
            pytest.fail("began to write")
        assert (tmp_path / "pipe").is_fifo()

    def test_a_link_to_a_file_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "disk").write_text("old")
        (tmp_path / "data").symlink_to("disk")
        with new_file(tmp_path / "data") as file:
            file.write(b"new")
        assert (tmp_path / "data").is_symlink()
        assert (tmp_path / "disk").read_text() == "new"

    HOLD = """
import sys
from pathlib import Path
from env_wrappers.datasets import new_directory, new_file
made = {"file": new_file, "directory": new_directory}[sys.argv[1]]
with made(Path("data")):
    print("begun", flush=True)
    sys.stdin.read()
"""

    @pytest.mark.parametrize("kind", ["file", "directory"])
    @pytest.mark.parametrize("killed", [True, False])
    def test_what_killed_processes_left_is_removed(
        self, tmp_path: Path, kind: str, killed: bool
    ) -> None:
        """Partial data of killed processes are removed; those of running processes are kept."""
        with subprocess.Popen(
            [sys.executable, "-c", self.HOLD, kind],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            (partial,) = tmp_path.glob(f"data.partial-{process.pid}*")
            if killed:
                process.kill()
                process.wait()
            make = {"file": new_file, "directory": new_directory}[kind]
            with make(tmp_path / "data"):
                assert partial.exists() == (not killed)
            process.kill()
        left = {path.name for path in tmp_path.iterdir()}
        assert left == ({"data"} if killed else {"data", partial.name})

    def test_two_make_the_same(self, tmp_path: Path) -> None:
        """If two processes make the same data, those of the first to finish are kept."""
        with new_directory(tmp_path / "data") as slow:
            (slow / "text").write_text("slow")
            with new_directory(tmp_path / "data") as fast:
                (fast / "text").write_text("fast")
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["text"]
        assert (tmp_path / "data" / "text").read_text() == "fast"

    @pytest.mark.parametrize("make", [new_file, new_directory])
    @pytest.mark.parametrize("moment", [(fcntl, "flock"), (Path, "replace"), (Path, "rename")])
    def test_another_that_cleans_up_takes_nothing_in_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, moment: tuple[Any, str]
    ) -> None:
        """Another writer's clean-up, right before the lock or the rename, keeps data in use."""
        owner, name = moment
        original = getattr(owner, name)

        def after_another(*arguments: Any) -> Any:
            monkeypatch.setattr(owner, name, original)
            with make(tmp_path / "data"):
                pass
            return original(*arguments)

        monkeypatch.setattr(owner, name, after_another)
        with make(tmp_path / "data") as partial:
            if make is new_directory:
                (partial / "text").write_text("made")
        assert [path.name for path in tmp_path.iterdir()] == ["data"]

    def test_a_file_does_not_replace_a_directory(self, tmp_path: Path) -> None:
        """The error is raised before any data are written."""
        with pytest.raises(IsADirectoryError), new_file(tmp_path):
            pytest.fail("began to write")

    def test_a_link_to_an_empty_directory_can_be_filled(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "data").symlink_to("disk")
        with new_directory(tmp_path / "data") as partial:
            (partial / "text").write_text("made")
        assert (tmp_path / "data").is_symlink()
        assert (tmp_path / "disk" / "text").read_text() == "made"

    @pytest.mark.parametrize("make", [new_file, new_directory])
    def test_a_name_is_no_pattern(self, tmp_path: Path, make: Any) -> None:
        """Leftovers are found under names with brackets; those of other names are kept."""
        left, other = tmp_path / "data[1].partial-7-abc", tmp_path / "data1.partial-7-abc"
        for folder in (left, other):
            folder.mkdir()
            (folder / ".lock").touch()
        with make(tmp_path / "data[1]"):
            assert (left.exists(), other.exists()) == (False, True)

    def test_a_file_in_a_missing_folder(self, tmp_path: Path) -> None:
        """The folder is not created."""
        with pytest.raises(FileNotFoundError), new_file(tmp_path / "missing" / "file"):
            pytest.fail("began to write")
        assert list(tmp_path.iterdir()) == []
