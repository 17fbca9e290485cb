"""Files from elsewhere, names in paths, and atomic writes."""

import json
import resource
from pathlib import Path

import pytest

from env_wrappers.alfworld.games import TREE, find_games
from env_wrappers.errors import DataError
from env_wrappers.files import (
    check_name,
    read_json,
    write_atomically,
)
from env_wrappers.textcraft.recipes import open_book
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.request import make_request
from hgpo_rllib.run.grid import open_sweep


@pytest.mark.parametrize("start", [b"[", b'{"a":', b'["]]]]", ', b'[{"\\"": "\\\\", "b":'])
def test_deep_json_is_refused(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "file")


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(json.dumps("a").encode("utf-16"))
    with pytest.raises(ValueError, match="utf-8"):
        read_json(tmp_path / "file")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "missing")


def test_a_home_directory_that_does_not_exist() -> None:
    message = "^~missing-user/data: there is no such home directory; give a path without ~$"
    for open_data in (lambda path: find_games(path, "train"), open_book):
        with pytest.raises(DataError, match=message):
            open_data("~missing-user/data")


HOSTILE = ["", ".", "..", "../x", "a/b", "/tmp/x", "~", ".x", "-x", "a\nb", "a\0b", "x" * 121]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_not_leave_their_folder(name: str, tmp_path: Path) -> None:
    """Names of runs and splits that could leave their folder are refused."""
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
    """Names in a sweep's file, and the split of an evaluation, cannot leave their folder."""
    content = {
        "scheduler": None,
        "axes": [],
        "trials": [{"name": "../../escaped", "point": {}, "config": {}}],
    }
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"'../../escaped' is not a name"):
        open_sweep(tmp_path)
    with pytest.raises(DataError, match=r"'../escaped' is not a name"):
        make_request([], "alfworld", "../escaped", "random", data=tmp_path)


class TestWriteAtomically:
    def test_replaces_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        assert write_atomically(file, "old") == file
        write_atomically(file, b"new")
        assert file.read_text() == "new"
        assert list(tmp_path.iterdir()) == [file]

    def test_a_failed_write_keeps_the_old_file(self, tmp_path: Path) -> None:
        """A write that fails midway, as on a full disk, keeps the old file."""
        file = tmp_path / "results.json"
        write_atomically(file, "old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                write_atomically(file, "new content")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert file.read_text() == "old"
        assert list(tmp_path.iterdir()) == [file]
