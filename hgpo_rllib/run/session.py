"""Keep Ray's files of one command in a private folder and remove them when the command exits.

A killed process cannot clean up after itself. ``python -m hgpo_rllib.run.session`` does it instead:
it waits for the end of its standard input, a pipe that the kernel closes when the command exits for
any reason.
"""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hgpo_rllib.errors import ConfigError

GRACE_S = 3.0
"""Seconds for processes to exit by themselves after the command, before they are killed."""
LIMIT_S = 30.0
"""Timeout of the clean-up in seconds, for processes that SIGKILL does not end."""
FINISHED = b"finished"
LOGS = "ray_logs"
"""Folder in a run directory."""


def temporary_folder() -> Path:
    """Return the folder of Ray's sessions: in $RAY_TMPDIR, or in a private folder of this user.

    The folder has the same name in every run, so that Prometheus finds the addresses to scrape.

    Raises:
        ConfigError: another user owns a folder of that name.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    if chosen:
        return Path(chosen) / "ray"  # as Ray does without `_temp_dir`
    folder = Path(tempfile.gettempdir()) / f"hgpo-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to another user: set $RAY_TMPDIR to a folder of yours")
    folder.chmod(0o700)
    return folder / "ray"  # Ray makes this one accessible to all users


@contextlib.contextmanager
def ray_session(run: Path | None = None) -> Iterator[Path]:
    """Yield the folder for `ray.init(_temp_dir=…)`, and remove the session after the block.

    The block starts and stops Ray. The remaining processes of the session are killed, also after an
    error in the block or when this process is killed. If the block does not finish, Ray's logs are
    copied to the run directory `run` (`LOGS`), and partial files in it are removed.
    """
    folder = temporary_folder()
    arguments = [str(folder), str(os.getpid()), str(run.absolute()) if run else ""]
    cleaner = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # not stopped by Ctrl-C
    )
    assert cleaner.stdin is not None
    try:
        yield folder
        cleaner.stdin.write(FINISHED)
    finally:
        with contextlib.suppress(BrokenPipeError):  # the cleaner was killed
            cleaner.stdin.close()
        cleaner.wait()


def clean_up(session: Path, command: int, run: Path | None) -> None:
    """Stop all processes of a session and remove its folder.

    Process `command` is not stopped: Ray leaves log files open in it. `run` is None also if the
    block of `ray_session` finished.
    """
    start = time.monotonic()
    while (processes := set(writers(session)) - {command}) and time.monotonic() < start + LIMIT_S:
        if time.monotonic() > start + GRACE_S:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.2)
    if run is not None:
        from hgpo_rllib.run.directory import remove_partial  # takes long to import

        # A full disk may be why the command failed.
        with contextlib.suppress(OSError):
            remove_partial(run)
        with contextlib.suppress(OSError):
            shutil.copytree(session / "logs", run / LOGS, dirs_exist_ok=True)
    shutil.rmtree(session, ignore_errors=True)


def writers(folder: Path) -> list[int]:
    """Return the processes that have a file in a folder open for writing.

    This finds all processes of a Ray session, including children of workers, as their output goes
    to a log file of the session. vLLM's engine overwrites its process name and environment, so
    these do not identify it.
    """
    found = []
    folder = folder.resolve()  # as the paths in /proc
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if any(_is_written(process, fd, folder) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


def _is_written(process: Path, descriptor: Path, folder: Path) -> bool:
    """Return whether a process has a file in the folder open for writing, even a deleted one.

    `psutil.Process.open_files` leaves out deleted files.
    """
    if not descriptor.readlink().is_relative_to(folder):
        return False
    flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _main(folder: str, process: str, run: str) -> None:
    finished = sys.stdin.buffer.read() == FINISHED
    for session in Path(folder).glob(f"session_*_{process}"):  # as Ray names it
        clean_up(session, int(process), Path(run) if run and not finished else None)


if __name__ == "__main__":
    _main(*sys.argv[1:])
