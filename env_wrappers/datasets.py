"""Create data directories and files atomically, identify generated data, and choose tasks."""

import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from env_wrappers.errors import DataError
from env_wrappers.files import read_json, write_json

MANIFEST = "manifest.json"
LOCK = ".lock"


def is_generated(out: Path, version: int, spec: Mapping[str, Any]) -> bool:
    """Return whether `out` holds data of this spec; False if it is missing or empty.

    Raises:
        DataError: `out` contains other files.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        manifest = read_json(out / MANIFEST)
        found = manifest["generator_version"], manifest["spec"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{out} exists and is not a generated data set: remove it or choose another directory"
        ) from error
    if found != (version, json.loads(json.dumps(spec))):
        raise DataError(
            f"{out} holds data of another spec (see its {MANIFEST}): "
            "remove it or choose another directory"
        )
    return True


def write_manifest(folder: Path, version: int, spec: Mapping[str, Any], **facts: Any) -> None:
    """Write the manifest by which `is_generated` recognizes finished data, with other facts."""
    content = {"generator_version": version, "spec": spec, **facts}
    write_json(folder / MANIFEST, content)


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `out` if the block succeeds.

    If another process creates `out` first, that directory is kept. A link to an empty directory
    stays a link.
    """
    out = out.resolve()
    with partial_directory(out) as partial:
        yield partial
        try:
            partial.rename(out)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            (out / LOCK).unlink()


@contextmanager
def partial_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `out` with a lock file; remove it after the block.

    First remove what killed processes have left there. A lock distinguishes leftovers from what is
    in use, because the kernel releases it when its process ends. A process id would be ambiguous
    across hosts and containers. The directory is created under another name, so that it is locked
    when others look for it.
    """
    for left in out.parent.glob(f"{glob.escape(out.name)}.partial-*"):
        with suppress(OSError), (left / LOCK).open("rb+") as lock:
            if _lock(lock):
                shutil.rmtree(left)
    own = f"{os.getpid()}-{secrets.token_hex(4)}"
    begun, partial = (out.with_name(f"{out.name}.{state}-{own}") for state in ("begun", "partial"))
    begun.mkdir(parents=True)
    try:
        with (begun / LOCK).open("wb") as lock:
            _lock(lock)
            begun.rename(partial)
            yield partial
    finally:
        for path in (begun, partial):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def new_file(out: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `out` if the block succeeds. A link stays a link."""
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    if out.exists() and not out.is_file():  # a device or a pipe would be replaced
        raise OSError(errno.EINVAL, "Not a regular file", str(out))
    out = Path(os.path.realpath(out))
    out.parent.resolve(strict=True)  # else a missing folder would be created
    with partial_directory(out) as partial:
        with (partial / out.name).open("wb") as file:
            yield file
        (partial / out.name).replace(out)


def _lock(file: BinaryIO) -> bool:
    """Try to take the lock; return False if it is held or the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def evenly(count: int, limit: int | None) -> Sequence[int]:
    """Return `limit` of the numbers below `count`, evenly spaced; all if None or if too few."""
    number = count if limit is None else min(limit, count)
    return [place * count // number for place in range(number)]
