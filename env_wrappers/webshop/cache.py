"""Cached folders of derived data: built once, shared by processes, with arrays mapped into memory.

A folder is built under a temporary name and then renamed, so it appears complete or not at all.
Processes that need the same folder wait for the one that is building it.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from env_wrappers.datasets import new_directory

_HEADER = 128  # bytes of a .npy header for one or two dimensions


def cache_roots(data: Path) -> tuple[Path, ...]:
    """Return the directories that may hold derived data, the preferred one first.

    These are a directory beside the data, and one in the user's cache if that is not writable.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with contextlib.suppress(RuntimeError):  # no home directory
        user = base if base.is_absolute() else Path.home() / ".cache"
        return data / ".webshop-cache", user / "hgpo-rllib" / "webshop"
    return (data / ".webshop-cache",)


def ensure_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Have a folder filled by ``build`` if it does not exist.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("ab") as lock:
        # On a file system without locks, two processes may build it; the first one's is kept.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():  # else another process has built it
            with new_directory(folder) as partial:
                build(partial)


def save_array(path: Path, array: np.ndarray) -> None:
    """Write an array as ``np.save`` does, whose error on a full disk does not name the cause.

    Raises:
        OSError: the array cannot be written, for instance because the disk is full.
    """
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _HEADER + array.nbytes)
        np.save(file, array)
        file.truncate()


def load_array(path: Path) -> np.ndarray:
    """Map an array on disk, read-only.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an array.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "empty" not in str(error):
            raise
        array = np.load(path, allow_pickle=False)  # an empty file cannot be mapped
    return np.asarray(array)  # slicing an np.memmap is slow
