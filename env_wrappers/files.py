"""Safe reading of untrusted files, atomic writing, and checks of names used in paths."""

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

import numpy as np
from pydantic import TypeAdapter, ValidationError

from env_wrappers.errors import DataError

MAX_DEPTH = 32
"""Maximum nesting of lists and objects; ALFWorld and WebShop files use at most ten levels."""

_NO_MARKS = bytes(set(range(256)) - set(b'[{]}"'))
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
        "beginning with a letter or digit"
    )


def user_cache() -> Path:
    """Return the user's cache directory; a RuntimeError says that there is no home directory."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else Path.home() / ".cache"


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading without ever blocking.

    Raises:
        OSError: the file cannot be read, or is a FIFO, a device or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a FIFO blocks
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "Not a regular file", str(path))


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a regular file.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write a file so that readers see either the old content or all of the new content.

    The temporary name ends with ``.partial``, which identifies files that killed processes left.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        return partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
        ValueError: the content is not JSON, or is nested deeper than ``MAX_DEPTH``.
    """
    with open_regular(path) as file:
        return parse_json(file.read())


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or is nested deeper than ``MAX_DEPTH``.
    """
    check_depth(content)
    # json.loads would also accept UTF-16, whose bytes hide brackets from the check.
    return json.loads(content.decode("utf-8"))


def check_depth(content: bytes, depth: int = 0) -> None:
    """Check the nesting of a JSON text before it is parsed, because parsers recurse.

    Args:
        content: the text, or a part that begins outside of strings.
        depth: number of lists and objects around it.

    Raises:
        ValueError: the text is nested deeper than ``MAX_DEPTH``.
    """
    # Once escaped characters are removed, every quotation mark begins or ends a string.
    content = content.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_MARKS)
    marks = np.frombuffer(content, np.uint8)
    outside = marks[np.cumsum(marks == ord('"')) % 2 == 0]
    steps = np.isin(outside, list(b"[{")).astype(int) - np.isin(outside, list(b"]}"))
    if depth + np.cumsum(steps).max(initial=0) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def validate_json(model: TypeAdapter[_Value], content: str | bytes, place: str) -> _Value:
    """Return the value of a JSON text that fits a model.

    Args:
        model: the expected types.
        content: the text.
        place: where it comes from, with which an error begins.

    Raises:
        DataError: the text is not JSON, or does not fit; the message names the field.
    """
    try:
        return model.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        problem = f"{field}: {first['msg']}" if field else first["msg"]
        raise DataError(f"{place}: {problem}; correct or remove it") from error
