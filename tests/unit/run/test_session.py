"""Ray's session folder: private while a command runs, and removed after any kind of end."""

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run import directory
from hgpo_rllib.run.lock import LOCK
from hgpo_rllib.run.session import LOGS, clean_up, ray_session, temporary_folder, writers
from tests.processes import is_alive, wait_until

# A command whose "Ray" is a process that writes a log in its session's folder. At the time of the
# clean-up it has another name and session id.
COMMAND = """
import os, subprocess, sys
from pathlib import Path
from hgpo_rllib.run.session import ray_session
with ray_session(Path(sys.argv[1])) as folder:
    session = folder / f"session_today_{os.getpid()}"
    (session / "logs").mkdir(parents=True)
    child = "import time; print('a line', flush=True); time.sleep(600)"
    with (session / "logs" / "worker.out").open("w") as log:
        worker = subprocess.Popen([sys.executable, "-c", child], stdout=log, start_new_session=True)
    print(worker.pid, session, flush=True)
    sys.stdin.readline()
    raise RuntimeError
"""


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the private folder inside a temporary folder of this test."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / f"hgpo-{os.getuid()}"


def test_nobody_else_can_look_into_the_folder(private: Path) -> None:
    """The folder becomes private even if it existed and was open to all."""
    private.mkdir(mode=0o777)
    private.chmod(0o777)
    with ray_session() as folder:
        folder.mkdir(mode=0o777, exist_ok=True)
        assert folder.is_relative_to(private)
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_run_directory_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is removed although nothing can be cleaned up in the run directory."""
    session = tmp_path / "session"
    (session / "logs").mkdir(parents=True)

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory, "remove_partial", fail)
    clean_up(session, os.getpid(), tmp_path / "run")
    assert not session.exists()


def test_a_folder_of_somebody_else_is_refused(private: Path, tmp_path: Path) -> None:
    private.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="RAY_TMPDIR"):
        temporary_folder()


def test_a_chosen_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """RAY_TMPDIR is used as Ray uses it, since docs and containers name files in that folder."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert temporary_folder() == tmp_path / "ray"


def test_a_session_is_removed_at_the_end(private: Path, tmp_path: Path) -> None:
    """The session is removed although this process, like Ray's driver, keeps a log open."""
    with contextlib.ExitStack() as still_open, ray_session(tmp_path) as folder:
        session = folder / f"session_today_{os.getpid()}"
        (session / "logs").mkdir(parents=True)
        still_open.enter_context((session / "logs" / "driver.log").open("w"))
        other = folder / "session_today_1"
        other.mkdir()
    assert not session.exists()
    assert other.exists()
    assert not (tmp_path / LOGS).exists()


def test_what_is_left_is_ended_and_removed(private: Path, tmp_path: Path) -> None:
    """Sessions are removed after a kill and after an error, tested at the same time."""
    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(end_a_command, how, tmp_path / how) for how in ("kill", "error")]:
            done.result()


def test_processes_that_write_into_a_folder(tmp_path: Path) -> None:
    """Writers are found even if their files were deleted, as programs that clean /tmp do."""
    log = tmp_path / "worker.out"
    with log.open("w") as stream, log.open() as _:
        log.unlink()
        assert writers(tmp_path) == [os.getpid()]
        link = tmp_path / "link"  # $TMPDIR can be a link
        link.symlink_to(tmp_path)
        assert writers(link) == [os.getpid()]
        assert stream.writable()
    assert writers(tmp_path) == []


def end_a_command(how: str, run: Path) -> None:
    """End a command; check that its worker ends, its log is kept and partial files are removed."""
    (run / "state.partial" / "learner").mkdir(parents=True)
    (run / ".metrics.jsonl.partial").touch()
    (run / "metrics.jsonl").touch()
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert command.stdout is not None
    assert command.stdin is not None
    worker, session = command.stdout.readline().split()
    process = psutil.Process(int(worker))
    log = Path(session) / "logs" / "worker.out"
    with log.open() as reading:
        wait_until(lambda: log.stat().st_size > 0, 60)
        assert writers(Path(session)) == [process.pid]
        if how == "kill":
            command.send_signal(signal.SIGKILL)
        else:
            command.stdin.write("\n")
            command.stdin.flush()
        wait_until(lambda: not Path(session).exists(), 60)
        assert reading.read() == "a line\n"
    assert not is_alive(process)
    assert (run / LOGS / "worker.out").read_text() == "a line\n"
    assert {path.name for path in run.iterdir()} == {LOGS, "metrics.jsonl", LOCK}
    command.communicate()
