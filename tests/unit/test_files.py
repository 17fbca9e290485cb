"""Files that somebody else wrote: JSON of bounded depth, and nothing but regular files."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.files import MAX_DEPTH, BoundedFile, open_regular, parse_json, read_json

VALUES = st.recursive(
    st.text('[]{}"\\ü', max_size=4) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"[\\', max_size=2), inner),
)


def depth(value: Any) -> int:
    """Return how many lists and objects are around the innermost value."""
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, list | dict) else 0


def nested(value: Any, levels: int) -> Any:
    """Return a value inside of so many lists."""
    for _ in range(levels):
        value = [value]
    return value


@given(VALUES, st.integers(1, MAX_DEPTH), st.integers(1, 9), st.booleans())
def test_the_depth_is_counted_exactly(value: Any, levels: int, size: int, ascii_only: bool) -> None:
    """Brackets in strings count for nothing, wherever the pieces of a file end."""
    value = nested(value, levels)
    content = json.dumps(value, ensure_ascii=ascii_only).encode()
    file = BoundedFile(io.BytesIO(content))
    if depth(value) > MAX_DEPTH:
        with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
            parse_json(content)
        with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
            list(iter(lambda: file.read(size), b""))
    else:
        assert parse_json(content) == value
        assert b"".join(iter(lambda: file.read(size), b"")) == content


@pytest.mark.parametrize("start", [b"[", b'{"a":', b'["]]]]", ', b'[{"\\"": "\\\\", "b":'])
def test_deep_json_is_refused_before_it_is_parsed(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start * 100_000)
    with pytest.raises(ValueError, match="nested deeper than"):
        read_json(tmp_path / "file")


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    """In UTF-16 a quotation mark is half of other characters, too: brackets could hide."""
    (tmp_path / "file").write_bytes(json.dumps("a").encode("utf-16"))
    with pytest.raises(ValueError, match="utf-8"):
        read_json(tmp_path / "file")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """Opening a FIFO would block until somebody writes to it."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        open_regular(tmp_path / "fifo")
    with pytest.raises(OSError, match="Not a regular file"):
        read_json(Path(os.devnull))
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing")
