"""Files that somebody else wrote: JSON of bounded depth, and nothing but regular files."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env_wrappers.alfworld.games import TREE, find_games
from env_wrappers.errors import DataError
from env_wrappers.files import (
    MAX_DEPTH,
    check_name,
    open_regular,
    parse_json,
    read_json,
    write_atomically,
)
from env_wrappers.webshop import source
from hgpo_rllib.config import ConfigError, load_config
from hgpo_rllib.evaluation.request import make_request
from hgpo_rllib.run.grid import open_sweep

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


@example([], MAX_DEPTH - 1, 1, False)
@example([], MAX_DEPTH, 1, False)
@given(VALUES, st.integers(1, MAX_DEPTH), st.integers(1, 9), st.booleans())
def test_the_depth_is_counted_exactly(value: Any, levels: int, size: int, ascii_only: bool) -> None:
    """Brackets in strings are not counted, for any chunk boundaries."""
    value = nested(value, levels)
    content = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(source, "_CHUNK", size)
        file.write(content)
        file.flush()
        elements = source._values(Path(file.name), "[]")
        if depth(value) > MAX_DEPTH:
            with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
                parse_json(content)
            with pytest.raises(ValueError, match=f"deeper than {MAX_DEPTH} levels"):
                list(elements)
        else:
            assert parse_json(content) == value
            assert [element for _, element, _ in elements] == value


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


HOSTILE = ["", ".", "..", "../x", "a/b", "/tmp/x", "~", ".x", "-x", "a\nb", "a\0b", "x" * 121]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_not_leave_their_folder(name: str, tmp_path: Path) -> None:
    """Of runs, splits and trials; all of them become part of a path."""
    with pytest.raises(DataError, match="is not a name: give up to 120 letters"):
        check_name(name)
    for key, value in (("name", name), ("env.train_split", name), ("evaluation.splits", [name])):
        with pytest.raises(ConfigError, match="is not a name") as error:
            load_config(None, [f"{key}={json.dumps(value)}"])
        assert str(error.value).startswith(key)
        assert "\n" not in str(error.value)
    (tmp_path / TREE / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="is not a name"):
        find_games(tmp_path, name)


@pytest.mark.parametrize("name", ["train", "valid_seen", "01-lr=1e-05,x", "Größe+2.5@a", "x" * 120])
def test_names(name: str) -> None:
    assert check_name(name) == name
    config = load_config(None, [f"{key}={json.dumps(name)}" for key in ("name", "env.train_split")])
    assert (config.name, config.env.train_split) == (name, name)


def test_names_in_other_files_do_not_leave_their_folder(tmp_path: Path) -> None:
    """A sweep's trials, and the split of an evaluation."""
    content = {
        "scheduler": None,
        "axes": [],
        "trials": [{"name": "../../escaped", "point": {}, "config": {}}],
    }
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"'../../escaped' is not a name"):
        open_sweep(tmp_path)
    with pytest.raises(DataError, match=r"'../escaped' is not a name"):
        make_request([], "alfworld", "../escaped", "random", "census", tmp_path, *[None] * 5)


class TestWriteAtomically:
    def test_replaces_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        assert write_atomically(file, "old") == file
        write_atomically(file, b"new")
        assert file.read_text() == "new"
        assert list(tmp_path.iterdir()) == [file]

    def test_a_failed_write_keeps_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also one that ends in the middle, as on a full disk."""
        file = tmp_path / "results.json"
        write_atomically(file, "old")

        def write_half(path: Path, content: bytes) -> None:
            with path.open("wb") as stream:
                stream.write(content[: len(content) // 2])
            raise OSError("disk full")

        monkeypatch.setattr(Path, "write_bytes", write_half)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(file, "new content")
        assert file.read_text() == "old"
        assert list(tmp_path.iterdir()) == [file]
