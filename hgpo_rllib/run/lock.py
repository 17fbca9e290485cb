"""Lock a directory so that one process at a time writes to it."""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from hgpo_rllib.section import ConfigError

LOCK = ".lock"
logger = logging.getLogger(__name__)
_held: set[int] = set()  # file descriptors of locks


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` in the block.

    The folder is created if it is missing, and removed if it is empty after the block.

    The lock is a kernel lock (`flock`) instead of a file with a process id. It is released when the
    process exits for any reason, so a SIGKILL or reboot leaves no stale lock. It also works across
    hosts and containers, where process ids differ; NFS supports it since Linux 2.6.12. The process
    id and host name in the file are only used in the error message.

    Raises:
        ConfigError: another process holds the lock, or the folder is not writable.
    """
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    _held.add(descriptor)
    try:
        _take(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        try:
            yield
        finally:
            if descriptor in _held and list(folder.iterdir()) == [path]:
                path.unlink()
                folder.rmdir()
    finally:
        if descriptor in _held:  # not in a forked child, see `_let_go`
            _held.remove(descriptor)
            os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        process, _, host = os.pread(descriptor, 1000, 0).decode(errors="replace").partition(" ")
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


def _let_go() -> None:
    """Close the locks in a forked child, which would hold them after its parent exits."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
