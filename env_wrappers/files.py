"""Read untrusted files, write files atomically, and check names used in paths."""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from env_wrappers.errors import DataError

_Value = TypeVar("_Value")
_NAME = re.compile(r"\w[\w.,=+@-]{0,119}")


def check_name(name: str) -> str:
    """Return ``name`` if it is safe as part of a path, so that it cannot name another folder.

    Raises:
        DataError: ``name`` is longer than 120 characters, contains characters other than letters,
            digits and ``.,=+@_-``, or does not start with a letter, a digit or an underscore.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise DataError(
        f"{name!r} is not a name: give up to 120 letters, digits and .,=+@_-, "
        "beginning with a letter, a digit or an underscore"
    )


def user_cache() -> Path:
    """Return the user's cache directory; a RuntimeError says that there is no home directory."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else Path.home() / ".cache"


def expand_home(path: str | Path) -> Path:
    """Return a path with its ``~`` replaced; DataError if there is no such home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(
            f"{path}: there is no such home directory; give a path without ~"
        ) from error


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; OSError if it is a FIFO, which would block, or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else opening a FIFO blocks
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; see ``open_regular``."""
    with open_regular(path) as file:
        return file.read()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a regular file; an OSError says why it cannot be read."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_hash(value: Any) -> str:
    """Return the SHA-256 of a value as JSON, in which the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write a file so that readers see either the old content or all of the new content.

    The temporary name ends with ``.partial``, which identifies files that killed processes left.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine could leave an empty file
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file atomically."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """Flush all files of a folder, and its entries, to disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
        ValueError: the content is not JSON, or is nested too deeply to be parsed.
    """
    return parse_json(read_regular(path))


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text; see ``read_json`` for errors."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def validate_json(model: TypeAdapter[_Value], content: str | bytes, place: str) -> _Value:
    """Return the value of a JSON text that fits a model.

    Raises:
        DataError: the text is not JSON, or does not fit; the message names `place` and the field.
    """
    try:
        return model.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"{field}: {first['msg']}" if field else first["msg"]
        raise DataError(f"{place}: {problem}; correct or remove it") from error
