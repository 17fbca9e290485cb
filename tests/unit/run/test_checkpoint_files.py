"""Checkpoint folders are replaced atomically, and damage is detected."""

import errno
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.run.checkpoint_files import (
    MANIFEST,
    DamagedFolderError,
    check_folder,
    newest_intact,
    previous,
    write_folder,
)
from hgpo_rllib.run.directory import RunDirectory


def fill(text: str, folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "weights").write_text(text)
    (folder / "config").write_text(f"of {text}")


def content(folder: Path) -> str:
    return (folder / "deep" / "weights").read_text()


@pytest.fixture
def final(tmp_path: Path) -> Path:
    """Return a folder with two versions: the current one and the previous one."""
    final = tmp_path / "state"
    for text in ("first", "second"):
        write_folder(final, lambda path, text=text: fill(text, path), keep_previous=True)
    return final


def test_versions(final: Path) -> None:
    """A write keeps the previous version only if it is asked to, and leaves no other files."""
    assert (content(final), content(previous(final))) == ("second", "first")
    assert sorted(path.name for path in final.parent.iterdir()) == ["state", "state.previous"]
    check_folder(final)
    assert newest_intact(final) == (final, [])
    write_folder(final, lambda path: fill("third", path))
    assert [path.name for path in final.parent.iterdir()] == ["state"]


@pytest.mark.parametrize(
    "name", ["deep/weights", "config", MANIFEST], ids=["deep", "file", "manifest"]
)
@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_the_version_before_a_damaged_one(final: Path, name: str, harm: str) -> None:
    """The previous version replaces a damaged one, so that the next write does not delete it."""
    path = final / name
    text = path.read_text()
    if harm == "gone":
        path.unlink()
    else:
        path.write_text(text[:-3] if harm == "cut" else "x" + text[1:])
    with pytest.raises(DamagedFolderError, match="state is damaged"):
        check_folder(final)
    version, (problem,) = newest_intact(final)
    assert version == final
    assert Path(name).name in problem
    assert content(final) == "first"
    assert not previous(final).exists()


@pytest.mark.parametrize(
    "manifest",
    [
        "[]",
        '"config"',
        "7",
        "null",
        "{}",
        '{"config": 5}',
        '{"config": [5]}',
        '{"config": ["5", 5]}',
        '{"config": [5, null]}',
        '{"config": {"size": 5}}',
        "[" * 100_000,
    ],
)
def test_a_manifest_of_another_shape(final: Path, manifest: str) -> None:
    """A malformed manifest counts as damage."""
    (final / MANIFEST).write_text(manifest)
    with pytest.raises(DamagedFolderError, match=rf"state is damaged: {MANIFEST}"):
        check_folder(final)
    assert newest_intact(final)[0] == final
    assert content(final) == "first"


def test_between_the_two_renames(final: Path) -> None:
    """If the process ended between the two renames, the previous version is restored."""
    previous(final).rename(final.parent / "older")
    final.rename(previous(final))
    assert newest_intact(final) == (final, [])
    assert content(final) == "second"


def test_nothing_whole(final: Path) -> None:
    for version in (final, previous(final)):
        (version / "config").unlink()
    version, problems = newest_intact(final)
    assert version is None
    assert len(problems) == 2


def test_a_write_that_fails_changes_nothing(final: Path) -> None:
    """A failed write removes its partial folder and keeps both versions."""

    def fail(path: Path) -> None:
        fill("third", path)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_folder(final, fail, keep_previous=True)
    assert (content(final), content(previous(final))) == ("second", "first")
    assert not final.with_name("state.partial").exists()


def test_what_a_killed_process_left(final: Path) -> None:
    """Files of an unfinished write are no part of the next one."""
    partial = final.with_name("state.partial")
    partial.mkdir()
    (partial / "old").touch()
    write_folder(final, lambda path: fill("third", path))
    assert content(final) == "third"
    assert not (final / "old").exists()


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links, `best/` is a copy of the checkpoint."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    directory = RunDirectory(tmp_path)
    write_folder(directory.checkpoint, lambda path: fill("first", path))
    directory.keep_best()
    check_folder(directory.best)
    assert content(directory.best) == "first"


def test_the_best_policy_outlives_the_last(tmp_path: Path) -> None:
    """`best/` shares files with the checkpoint and stays intact when the checkpoint is replaced."""
    directory = RunDirectory(tmp_path)
    write_folder(directory.checkpoint, lambda path: fill("first", path))
    directory.keep_best()
    weights = directory.best / "deep" / "weights"
    assert weights.samefile(directory.checkpoint / "deep" / "weights")
    for text in ("first", "second"):
        check_folder(directory.checkpoint)
        check_folder(directory.best)
        assert (content(directory.checkpoint), content(directory.best)) == (text, "first")
        write_folder(directory.checkpoint, lambda path: fill("second", path))
