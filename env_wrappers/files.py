"""Safe reading of untrusted files, and checks of names used in paths.

JSON parsers recurse or store the path of every level: 100 KB of ``[`` cause a RecursionError, or
23 GB of memory use in ijson. Opening a FIFO blocks until another process writes to it.
"""

import errno
import json
import os
import re
import secrets
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from env_wrappers.errors import DataError

MAX_DEPTH = 32
"""Maximum nesting of lists and objects; ALFWorld and WebShop files use at most ten levels."""

_NAME = re.compile(r"\w[\w.,=+@-]{0,119}")
_CHUNK = 1 << 20
_STEPS = bytes.maketrans(b"[{]}", np.array([1, 1, -1, -1], np.int8).tobytes())
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


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
    _DepthLimit().check(content)
    # json.loads would also accept UTF-16, whose bytes hide brackets from the check.
    return json.loads(content.decode("utf-8"))


class BoundedFile:
    """A binary file for incremental JSON parsers that checks the nesting of each chunk read."""

    def __init__(self, file: BinaryIO) -> None:
        """Read from ``file``."""
        self._file = file
        self._limit = _DepthLimit()

    def read(self, size: int = -1) -> bytes:
        """Return what ``file.read(size)`` returns.

        Raises:
            ValueError: the content read so far is nested deeper than ``MAX_DEPTH``.
        """
        content = self._file.read(size)
        self._limit.check(content)
        return content


class _DepthLimit:
    """Track bracket depth outside strings; a few C-level passes, faster than any parser."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escape = b""  # backslash at the end of the previous chunk

    def check(self, content: bytes) -> None:
        """Raise ValueError if the text is nested too deeply once ``content`` is appended."""
        for start in range(0, len(content), _CHUNK):
            self._check_chunk(content[start : start + _CHUNK])

    def _check_chunk(self, chunk: bytes) -> None:
        chunk = (self._escape + chunk).replace(rb"\\", b"")
        self._escape = b"\\" if chunk.endswith(b"\\") else b""
        # Once escaped quotes are removed, every quotation mark begins or ends a string.
        parts = chunk.replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        steps = np.frombuffer(outside.translate(_STEPS, _NO_BRACKETS), np.int8)
        if len(steps):
            depths = self._depth + np.cumsum(steps, dtype=np.int64)
            if depths.max() > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
            self._depth = int(depths[-1])
