"""One process at a time writes to a directory."""

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
    """Keep other processes from writing to `folder` in the block.

    The folder is made if it is missing, and removed again if the block leaves it empty.

    The lock is the kernel's (`flock`), not a file with a process id: it ends with the process,
    whatever ended that, so that none is stale after a SIGKILL or a reboot, and another host or
    container, where an id says nothing, sees it as well. NFS passes it on since Linux 2.6.12. The
    process id and the host name in the file are only for the message.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be written.
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
        if descriptor in _held:  # else this is a forked child, see `_let_go`
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
    """A forked child shares its parent's locks, and would hold them after the parent's end."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
