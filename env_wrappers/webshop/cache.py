"""Cached folders of derived data: built once, sealed with checksums, shared by processes.

A folder is built under a temporary name and then renamed, so it appears atomically. Processes that
need the same folder wait for the one that is building it.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from env_wrappers.datasets import partial_directory
from env_wrappers.errors import DataError
from env_wrappers.files import open_regular, read_json, write_atomically

Facts = dict[str, Any]

_SEAL = "meta.json"
_HASHES = "hashes.json"
_SAMPLE = 1 << 20  # checksums cover this many bytes at each end of a file
_log = logging.getLogger(__name__)


def cache_roots(data: Path) -> tuple[Path, ...]:
    """Return the directories that may hold derived data, the preferred one first.

    These are a directory beside the data, and one in the user's cache if that is not writable.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with contextlib.suppress(RuntimeError):  # no home directory
        user = base if base.is_absolute() else Path.home() / ".cache"
        return data / ".webshop-cache", user / "hgpo-rllib" / "webshop"
    return (data / ".webshop-cache",)


def ensure_folder(folder: Path, build: Callable[[Path], Facts]) -> Facts:
    """Return the facts of a sealed folder; build the folder if it is missing or damaged.

    Args:
        folder: path of the folder.
        build: fills an empty directory and returns facts about it (JSON).

    Raises:
        OSError: the folder cannot be written.
    """
    facts = read_seal(folder)
    if facts is not None:
        return facts
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _locked(folder.parent / f"{folder.name}.lock"):
        facts = read_seal(folder)  # another process may have built it
        if facts is None:
            _log.info("building %s", folder)
            facts = _build(folder, build)
    return facts


def read_seal(folder: Path) -> Facts | None:
    """Return the facts of a folder; None if it is missing, incomplete or damaged.

    Only each file's size and its first and last megabyte are checked, because reading gigabytes
    at each start would take too long.
    """
    try:
        seal = read_json(folder / _SEAL)
        intact = all(_checksum(folder / name) == want for name, want in seal["files"].items())
        return seal["facts"] if intact and isinstance(seal["facts"], dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def content_hashes(files: Iterable[Path], roots: Iterable[Path]) -> tuple[str, ...]:
    """Return the SHA-256 of each file; unchanged files are not read again.

    The hashes are cached in the roots together with the files' metadata.

    Raises:
        DataError: a file cannot be read, or changes while it is read.
    """
    roots = tuple(roots)
    memo: dict[str, Any] = {}
    for root in reversed(roots):
        memo |= _read_memo(root)
    known = {str(file): _hash_of(file, memo.get(str(file))) for file in files}
    if known != {name: memo.get(name) for name in known}:
        _write_memo(roots, known)
    return tuple(entry["sha256"] for entry in known.values())


def stamp(file: Path) -> list[int]:
    """Return metadata that changes with a file: size, mtime, ctime and inode."""
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _hash_of(file: Path, entry: Any) -> dict[str, Any]:
    try:
        before = stamp(file)
        if isinstance(entry, dict) and entry.get("stamp") == before and "sha256" in entry:
            return entry
        with open_regular(file) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if stamp(file) != before:
            raise DataError(f"{file} changes while it is read; try again when it is complete")
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; make it readable") from error
    return {"sha256": digest, "stamp": before}


def _read_memo(root: Path) -> dict[str, Any]:
    try:
        memo = read_json(root / _HASHES)
    except (OSError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}


def _write_memo(roots: Iterable[Path], known: dict[str, Any]) -> None:
    """Store hashes in the first writable root; if there is none, they are computed again."""
    for root in roots:
        with contextlib.suppress(OSError):
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(root / _HASHES, json.dumps(_read_memo(root) | known, indent=1))
            return


def _build(folder: Path, build: Callable[[Path], Facts]) -> Facts:
    with partial_directory(folder) as partial:
        staging = partial / "new"
        staging.mkdir()
        facts = build(staging)
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        seal = {
            "facts": facts,
            "files": {path.relative_to(staging).as_posix(): _checksum(path) for path in files},
        }
        (staging / _SEAL).write_text(json.dumps(seal, indent=1), encoding="utf-8")
        if folder.exists():  # damaged; processes that have its files open keep them
            folder.rename(partial / "old")
        staging.rename(folder)
    return facts


def _checksum(path: Path) -> list[int]:
    """Return the size of a file and a checksum of its two ends."""
    size = path.stat().st_size
    with open_regular(path) as file:
        checksum = zlib.crc32(file.read(_SAMPLE))
        if size > _SAMPLE:
            file.seek(max(_SAMPLE, size - _SAMPLE))
            checksum = zlib.crc32(file.read(_SAMPLE), checksum)
    return [size, checksum]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes, waiting for it if necessary.

    On a file system without locks, two processes may build the same folder; the later one wins.
    """
    with path.open("ab") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
