"""Cached folders of derived data, built once and shared by processes."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from env_wrappers.datasets import new_directory
from env_wrappers.errors import DataError
from env_wrappers.files import file_hash, read_json, user_cache, write_atomically

FORMAT = 4
"""Version of all derived data; folders of another version are not used."""

_HASHES = "hashes.json"
_remembered_hashes = TypeAdapter(dict[str, tuple[tuple[int, ...], str]])
_HEADER = 128  # bytes of a .npy header for one or two dimensions


def cache_roots(data: Path) -> tuple[Path, ...]:
    """Return the directories that may hold derived data, the preferred one first.

    These are a directory beside the data, and one in the user's cache if that is not writable.
    """
    with contextlib.suppress(RuntimeError):
        return data / ".webshop-cache", user_cache() / "hgpo-rllib" / "webshop"
    return (data / ".webshop-cache",)


def ensure_folder(folder: Path, build: Callable[[Path], None]) -> None:
    """Have a missing folder filled by ``build``.

    It is built under a temporary name and then renamed, so it appears complete or not at all.
    Processes that need the same folder wait for the one that is building it.

    Raises:
        OSError: the folder cannot be written.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("ab") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: the first one is kept
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():  # else another process has built it
            with new_directory(folder) as partial:
                build(partial)


def content_hash(file: Path, roots: Sequence[Path]) -> str:
    """Return the SHA-256 of a file; the first writable root remembers it until the file changes.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        stamp = _stamp(file)  # before reading: a file that changes meanwhile is read again
        for root in roots:
            remembered, digest = _read_hashes(root).get(str(file), ((), ""))
            if remembered == stamp:
                return digest
        digest = file_hash(file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; make it readable") from error
    for root in roots:
        with contextlib.suppress(OSError):
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
            hashes = _read_hashes(root) | {str(file): (stamp, digest)}
            write_atomically(root / _HASHES, json.dumps(hashes, indent=1))
            break
    return digest


def _stamp(file: Path) -> tuple[int, ...]:
    """Return metadata that changes with a file: size, mtime, ctime and inode."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _read_hashes(root: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the remembered stamp and hash of each file; none if they cannot be read."""
    try:
        return _remembered_hashes.validate_python(read_json(root / _HASHES))
    except (OSError, ValueError):
        return {}


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
        return np.asarray(np.load(path, mmap_mode="r"))  # slicing an np.memmap is slow
    except EOFError as error:
        raise ValueError(f"{path.name} is an empty file") from error
