"""Ray's files of one command: in a folder that only its user can read, and removed with it.

A process that is killed cannot clean up after itself. ``python -m hgpo_rllib.run.session`` does it
in its place: it waits for the end of its standard input, a pipe that the system closes when the
command ends, however that happens.
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

from hgpo_rllib.section import ConfigError

GRACE_S = 3.0
"""Seconds that processes have to end by themselves after the command."""
LIMIT_S = 30.0
"""Seconds after which the clean-up gives up on a process that SIGKILL does not end."""
FINISHED = b"finished"
LOGS = "ray_logs"
"""Folder of a run directory."""


def temporary_folder() -> Path:
    """Where Ray keeps its sessions: $RAY_TMPDIR, or a folder of this user alone.

    The folder has the same name in every run, so that Prometheus finds the addresses to scrape.

    Raises:
        ConfigError: another user made a folder of that name.
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
    return folder / "ray"  # which Ray opens to everybody


@contextlib.contextmanager
def ray_session(run: Path | None = None) -> Iterator[Path]:
    """The folder for `ray.init(_temp_dir=…)`; what Ray leaves there goes with the block.

    The block starts Ray and stops it. Where it does not come to its end, because of an error or
    because the process is killed, processes that still use the session are ended, too.

    Args:
        run: the run directory, if there is one. After such an end it gets Ray's logs (`LOGS`), and
            loses what was half written.
    """
    folder = temporary_folder()
    arguments = [str(folder), str(os.getpid()), str(run.absolute()) if run else ""]
    cleaner = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the command
    )
    assert cleaner.stdin is not None
    try:
        yield folder
        cleaner.stdin.write(FINISHED)
    finally:
        with contextlib.suppress(BrokenPipeError):  # it was killed, and nothing depends on it
            cleaner.stdin.close()
        cleaner.wait()


def clean_up(session: Path, command: int, run: Path | None) -> None:
    """End all processes of a session, and remove its folder.

    Args:
        session: a folder of Ray's.
        command: process id of the command, which may go on: Ray leaves its logs open there.
        run: see `ray_session`; None as well when the command came to its end.
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

        remove_partial(run)
        with contextlib.suppress(OSError):  # a full disk may be why the command failed
            shutil.copytree(session / "logs", run / LOGS, dirs_exist_ok=True)
    shutil.rmtree(session, ignore_errors=True)


def writers(folder: Path) -> list[int]:
    """Processes that have a file in a folder open for writing.

    All processes of a Ray session have, those below a worker included: their output goes to a log
    of the session. Names and environments say less: vLLM's engine overwrites both.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if any(_is_written(process, fd, folder) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


def _is_written(process: Path, descriptor: Path, folder: Path) -> bool:
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
