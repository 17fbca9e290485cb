"""Lock a directory so that one process at a time writes to it."""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hgpo_rllib.errors import ConfigError

LOCK = ".lock"
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` in the block.

    The folder is created if it is missing, and removed if it is empty after the block.

    The kernel releases the lock (`flock`) when the process exits for any reason. It works across
    hosts and containers, where process ids differ; NFS supports it since Linux 2.6.12. The process
    id and host name in the file are only for the error message.

    Raises:
        ConfigError: another process holds the lock, or the folder is not writable.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    with file:
        _take(file, folder)
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            if list(folder.iterdir()) == [path]:
                path.unlink()
                with contextlib.suppress(OSError):  # another process has locked it since
                    folder.rmdir()


def _take(file: TextIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        process, _, host = file.read().partition(" ")
        holder = f"process {process} on {host.strip()}" if host else "another process"
        raise ConfigError(
            f"{folder} is in use: {holder} writes to it; wait until that has ended, or stop it"
        ) from error
    except OSError as error:
        logger.warning(
            "%s: this file system has no locks (%s): write there with one process at a time",
            folder,
            error.strerror,
        )
