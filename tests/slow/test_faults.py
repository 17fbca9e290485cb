"""A run loses each of its processes and its disk: docs/reliability.md. `pytest -m slow`.

All tests but the last use one run, in the order of this file, and resume it after each end.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hgpo_rllib.jsonl import read_jsonl
from hgpo_rllib.run.directory import RunDirectory
from tests.integration.conftest import EXAMPLE, SMALL
from tests.integration.runs import ONE_AT_A_TIME, rows, run_of
from tests.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE_S = 600
"""For what takes seconds on an idle machine."""
LEARNER = "ray::_WrappedExecutable"


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Yield a folder on a small file system, or a plain folder where mounting is not allowed."""
    folder = Path(tempfile.mkdtemp(prefix="disk"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module", autouse=True)
def temporary() -> Iterator[Path]:
    """Yield the folder for commands' temporary files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="t") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def run(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has finished one iteration and is set to continue for many."""
    folder = tmp_path_factory.mktemp("first")
    places = [f"cache={folder / 'cache'}", f"output={disk}"]
    settings = ["iterations=1", "checkpoint_interval=1", "policy_server.max_outage_s=300"]
    with Command([str(EXAMPLE), *SMALL, *places, *settings], folder / "log.txt") as first:
        assert first.process.wait(PATIENCE_S) == 0, first.log.read_text()
    path = run_of(disk)
    change(path, "iterations: 1\n", "iterations: 1000\n")
    return path


def change(run: Path, old: str, new: str) -> None:
    """Change a setting for the next time the run is resumed."""
    config = (run / "config.yaml").read_text()
    assert config.count(old) == 1
    (run / "config.yaml").write_text(config.replace(old, new))


def iterations(run: Path) -> int:
    """Return the number of iterations in metrics.jsonl; fail if one is missing or repeated."""
    numbers = [row["iteration"] for row in read_jsonl(run / "metrics.jsonl")]
    assert numbers == list(range(1, len(numbers) + 1))
    return len(numbers)


@contextlib.contextmanager
def resumed(run: Path, log: Path) -> Iterator[Command]:
    """Resume the run, which may lose one iteration, and wait for two more."""
    before = iterations(run)
    with Command(["--resume", str(run)], log) as command:
        command.wait_until(lambda: "resumed after iteration" in log.read_text(), PATIENCE_S)
        (number,) = re.findall(r"resumed after iteration (\d+)", log.read_text())
        assert int(number) >= before - 1
        wait_for_iterations(command, run, int(number) + 2)
        yield command


def wait_for_iterations(command: Command, run: Path, count: int) -> None:
    """Wait for iterations in metrics.jsonl, whose lines are appended atomically."""
    command.wait_until(lambda: len(rows(run / "metrics.jsonl")) >= count, PATIENCE_S)


def find(command: Command, name: str) -> psutil.Process:
    """Return the first process with this name, or with a title that starts with it."""
    for process in command.processes.alive():
        title = " ".join(process.cmdline())
        if process.name() == name or title.startswith(name):
            return process
    raise AssertionError(f"no {name} in {command.processes.command_lines()}")


def assert_nothing_is_left(command: Command, temporary: Path, run: Path) -> None:
    """Check that no process, no Ray session and no partial file remains after a minute."""
    command.assert_nothing_survives(60)  # including the clean-up process
    assert list(temporary.rglob("session_[0-9]*")) == []
    assert list(temporary.glob("hgpo-[!0-9]*")) == []
    assert [path for path in run.iterdir() if "partial" in path.name] == []


def stop(command: Command) -> None:
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(PATIENCE_S) == 130, command.log.read_text()


def new_lines(command: Command, before: str) -> list[str]:
    """Return the lines that a command has printed since, without those about iterations.

    The games are easy: in some iterations all episodes win, which the command reports.
    """
    lines = command.log.read_text()[len(before) :].splitlines()
    iteration_lines = re.compile(r" +\d|.* update \d+: nothing to learn from, all advantages are 0")
    return [line for line in lines if line.strip() and not iteration_lines.match(line)]


def test_a_run_survives_lost_processes(run: Path, temporary: Path, tmp_path: Path) -> None:
    """The run continues after the loss of each of these processes, one after the other."""
    names = ("VLLM::EngineCore", "ray::ServeReplica", "ray::ServeController", "ray::OwnerLiveness")
    with resumed(run, tmp_path / "log.txt") as command:
        for name in names:
            done, begun = iterations(run), time.monotonic()
            find(command, name).kill()
            wait_for_iterations(command, run, done + 2)
            print(f"{name}: two more iterations after {time.monotonic() - begun:.0f} s")
        stop(command)
        assert "Traceback" not in command.log.read_text()
        assert_nothing_is_left(command, temporary, run)
    iterations(run)


def test_an_engine_that_hangs(run: Path, temporary: Path, tmp_path: Path) -> None:
    """A hanging engine is detected and replaced, and the log has a line with the time."""
    with resumed(run, tmp_path / "log.txt") as command:
        done, begun = iterations(run), time.monotonic()
        engine = find(command, "VLLM::EngineCore")
        engine.suspend()
        wait_for_iterations(command, run, done + 2)
        print(f"two more iterations after {time.monotonic() - begun:.0f} s")
        assert not engine.is_running(), "the suspended engine holds its memory"
        assert re.search(r"\d\d:\d\d:\d\d policy server: ", command.log.read_text())
        stop(command)
        assert_nothing_is_left(command, temporary, run)


@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_losses_that_end_a_run(name: str, run: Path, temporary: Path, tmp_path: Path) -> None:
    """The run ends within a minute, with one line that has the command to resume it."""
    with resumed(run, tmp_path / "log.txt") as command:
        assert_one_line_at_the_end(command, name, run)
        assert_nothing_is_left(command, temporary, run)


def assert_one_line_at_the_end(command: Command, name: str, run: Path) -> None:
    before = command.log.read_text()
    find(command, name).kill()
    assert command.process.wait(60) == 1, command.log.read_text()
    # If the raylet still runs, it reports every lost worker with possible reasons such as memory.
    (said,) = [line for line in new_lines(command, before) if "(raylet)" not in line]
    assert f"continue with: hgpo train --resume {run}" in said


def test_a_lost_learner(run: Path, temporary: Path, tmp_path: Path) -> None:
    """The loss of one of two learner processes ends the run with one line."""
    change(run, "num_learners: 0", "num_learners: 2")
    change(run, "replica_cpus: 1\n", "replica_cpus: 0\n")
    try:
        with resumed(run, tmp_path / "log.txt") as command:
            assert_one_line_at_the_end(command, LEARNER, run)
            assert_nothing_is_left(command, temporary, run)
    finally:
        change(run, "num_learners: 2", "num_learners: 0")
        change(run, "replica_cpus: 0\n", "replica_cpus: 1\n")


def test_a_killed_command(run: Path, temporary: Path, tmp_path: Path) -> None:
    with resumed(run, tmp_path / "log.txt") as command:
        command.processes.command_lines()  # finds the processes before their parent ends
        command.process.kill()
        command.process.wait()
        assert_nothing_is_left(command, temporary, run)


def test_a_full_disk(run: Path, disk: Path, temporary: Path, tmp_path: Path) -> None:
    """The run ends with one line, and can be resumed once there is space (in the next test)."""
    if not disk.is_mount():
        pytest.skip("no file system can be mounted here")
    with resumed(run, tmp_path / "log.txt") as command:
        before = command.log.read_text()
        filler = disk / "filler"
        try:
            fill(filler)
            assert command.process.wait(60) == 1, command.log.read_text()
        finally:
            filler.unlink()
        (said,) = new_lines(command, before)
        assert said.startswith("hgpo: No space left on device")
        assert f"continue with: hgpo train --resume {run}" in said
        assert_nothing_is_left(command, temporary, run)


def fill(file: Path) -> None:
    """Fill the disk to the last byte."""
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))


def test_the_run_is_whole(run: Path, temporary: Path, tmp_path: Path) -> None:
    with resumed(run, tmp_path / "log.txt") as command:
        stop(command)
        assert_nothing_is_left(command, temporary, run)
    iterations(run)


def test_a_killed_trial(temporary: Path, tmp_path: Path) -> None:
    """The other trial finishes, the log names the reason, and the killed trial can be resumed."""
    folder = tmp_path / "sweep"
    places = [f"cache={tmp_path / 'cache'}", f"--output={folder}", f"output={tmp_path / 'runs'}"]
    settings = [*SMALL, "iterations=2", "checkpoint_interval=1", ONE_AT_A_TIME, *places]
    grid = ["--grid", "algorithm.weight_alpha=0,1"]
    first, second = (folder / f"0{n + 1}-weight_alpha={n}-seed=0" for n in range(2))
    with Command([str(EXAMPLE), *settings, *grid], tmp_path / "log.txt", "sweep") as command:
        command.wait_for(first / "metrics.jsonl", PATIENCE_S)
        find(command, "ray::ResourceTrainable").kill()
        assert command.process.wait(PATIENCE_S) == 1, command.log.read_text()
        assert re.search(f"{first.name} failed: its process ended", command.log.read_text())
        assert RunDirectory(second).is_finished()
        assert not RunDirectory(first).is_finished()
        assert_nothing_is_left(command, temporary, first)

    with Command(["--resume", str(folder)], tmp_path / "resumed.txt", "sweep") as again:
        assert again.process.wait(PATIENCE_S) == 0, again.log.read_text()
        assert iterations(first) == iterations(second) == 2
        assert_nothing_is_left(again, temporary, first)
