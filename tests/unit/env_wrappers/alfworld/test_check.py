"""Checking trees of games: valid games pass, and each kind of damage is reported."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_wrappers import processes
from env_wrappers.alfworld.check import check_tree
from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import TREE, find_games
from env_wrappers.alfworld.generator import GenerationSpec
from env_wrappers.alfworld.planner import recorded_plan
from env_wrappers.datasets import MANIFEST
from env_wrappers.errors import DataError

Game = dict[str, Any]


def edit(game: Path, change: Callable[[Game], object]) -> None:
    """Change the content of a game file in place."""
    content = json.loads(game.read_text(encoding="utf-8"))
    change(content)
    game.write_text(json.dumps(content), encoding="utf-8")


def replace(key: str, old: str, new: str) -> Callable[[Game], None]:
    """Return a change that replaces text under a key and asserts that the text occurs."""

    def change(content: Game) -> None:
        assert old in content[key]
        content[key] = content[key].replace(old, new)

    return change


@pytest.fixture
def tree(generated_games: Path, tmp_path: Path) -> Path:
    """Return a copy of the generated games without a manifest, like the official data."""
    shutil.copytree(generated_games, tmp_path / "data")
    (tmp_path / "data" / MANIFEST).unlink()
    return tmp_path / "data"


@pytest.mark.parametrize("part", ["", TREE])
def test_generated_games_are_sound(
    generated_games: Path, generated_spec: GenerationSpec, part: str
) -> None:
    seen: list[tuple[int, int]] = []
    found = check_tree(
        generated_games / part, replay=True, on_progress=lambda *done: seen.append(done)
    )
    assert (found.kind, found.broken) == ("generated", {})
    assert all(game.replayed and not game.skipped for game in found.games)
    each = {(split, kind) for split in generated_spec.splits for kind in generated_spec.task_types}
    assert {(game.split, game.task_type) for game in found.games} == each
    assert seen == [(done, 9) for done in range(1, 10)]


def test_workers_find_the_same(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_games(tree, "train")[0].write_text("{")
    alone = check_tree(tree, replay=True)
    monkeypatch.setattr(processes, "_ITEMS_PER_WORKER", 4)
    assert check_tree(tree, replay=True) == alone
    assert len(alone.broken) == 1


def test_official_games_are_sound(official_games: list[Path]) -> None:
    found = check_tree(official_games[0].parents[4], replay=True)
    assert (found.kind, found.broken) == ("official", {})
    assert [game.replayed for game in found.games] == [True] * 3


def test_a_game_without_a_walkthrough_is_sound(tree: Path) -> None:
    """A game without a walkthrough, like most official ones, is valid but not replayed."""
    game = find_games(tree, "train")[0]
    edit(game, lambda content: content.update(walkthrough=None))
    found = check_tree(tree, replay=True)
    assert found.broken == {}
    not_played = [each.file for each in found.games if not each.replayed]
    assert not_played == [game.relative_to(tree).as_posix()]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.pop("grammar"), "no game: grammar: Field required"),
        (lambda c: c.update(pddl_problem=" "), "pddl_problem: String should match"),
        (lambda c: c.pop("solvable"), "solvable: Field required"),
        (lambda c: c.update(solvable="true"), "solvable: Input should be a valid boolean"),
        (lambda c: c.update(walkthrough="look"), "walkthrough: Input should be a valid array"),
        (replace("pddl_domain", "(:action CleanObject", "(:action Wash"), "domain is not ALFWorld"),
        (
            replace("grammar", '"move {o} to {r}"', '"put {o} in/on {r}"'),
            "grammar is not ALFWorld's",
        ),
        (replace("grammar", "Your task is to: ", "Do: "), "grammar is not ALFWorld's"),
        (replace("pddl_problem", "(:goal", "(:aim"), "does not say what the goal is"),
    ],
)
def test_broken_content(tree: Path, change: Callable[[Game], object], reason: str) -> None:
    """Broken content is found without replaying, and only the broken game is reported."""
    game = find_games(tree, "valid_seen")[1]
    edit(game, change)
    ((file, why),) = check_tree(tree).broken.items()
    assert file == game.relative_to(tree).as_posix()
    assert reason in why
    assert "\n" not in why


def test_a_grammar_that_lacks_an_answer(tree: Path) -> None:
    """A trusted game whose grammar lacks a text is broken; the others are still replayed."""
    game = find_games(tree, "train")[0]
    edit(game, replace("grammar", '"GotoLocation.feedback"', '"MoveTo.feedback"'))
    found = check_tree(tree, replay=True, trusted=True)
    ((file, why),) = found.broken.items()
    assert file == game.relative_to(tree).as_posix()
    assert "cannot answer 'go to " in why
    assert "CSGUnknownSymbolError" in why


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"grammar": "', "EOF"), (b"[]", "should be an object"), (b'{"a": "\xff"}', "unicode")],
    ids=["cut off", "a list", "not UTF-8"],
)
def test_broken_files(tree: Path, content: bytes, reason: str) -> None:
    find_games(tree, "train")[0].write_bytes(content)
    (why,) = check_tree(tree).broken.values()
    assert reason in why


def test_a_deeply_nested_game_is_refused(tree: Path) -> None:
    """Too deeply nested JSON raises DataError instead of RecursionError."""
    game = find_games(tree, "train")[0]
    game.write_bytes(b"[" * 100_000)
    (why,) = check_tree(tree).broken.values()
    assert "recursion limit" in why
    for read in (lambda: find_games(tree, "train"), lambda: recorded_plan(game)):
        with pytest.raises(DataError, match="nested too deeply"):
            read()
    with pytest.raises(DataError, match="nested too deeply"):
        GameEngine(game)


def test_a_deeply_nested_trajectory_is_refused(tree: Path) -> None:
    game = find_games(tree, "train")[0]
    task = game.parent.parent  # tells no task type, so that traj_data.json is read
    (game.parent / "traj_data.json").write_bytes(b'{"a":' * 100_000)
    task.rename(task.with_name("fold_the_towel-Towel-None-Bed-1"))
    (why,) = check_tree(tree).broken.values()
    assert "nested too deeply" in why


@pytest.mark.parametrize(
    ("make", "reason"), [(os.mkfifo, "Not a regular file"), (os.mkdir, "Is a directory")]
)
def test_a_pipe_or_folder_in_place_of_a_game(
    tree: Path, make: Callable[[Path], None], reason: str
) -> None:
    """A pipe or folder in place of a game file is reported, without blocking on the pipe."""
    game = find_games(tree, "train")[0]
    game.unlink()
    make(game)
    assert check_tree(tree).broken == {
        game.relative_to(tree).as_posix(): f"cannot be read: {reason}"
    }
    with pytest.raises(DataError, match=reason):
        find_games(tree, "train")


@pytest.mark.parametrize("part", ["", "valid_seen", "a task"])
def test_a_folder_that_cannot_be_read_is_reported(
    tree: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable folder is reported, the other games are checked, and `find_games` raises."""
    task = find_games(tree, "valid_seen")[0].parent.parent
    folder = {"a task": task}.get(part, tree / TREE / part)
    scandir = os.scandir

    def refuse(path: Any) -> Any:  # root reads all folders, whatever their permissions say
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    if part == "":
        with pytest.raises(DataError, match=f"cannot read {folder}: Permission denied"):
            check_tree(tree)
        return
    found = check_tree(tree)
    assert found.broken == {
        folder.relative_to(tree).as_posix(): "cannot be read: Permission denied"
    }
    assert len([game for game in found.games if game.split == "train"]) == 3
    with pytest.raises(DataError, match=f"cannot read {folder}: Permission denied"):
        find_games(tree, "valid_seen")


def test_a_tree_of_which_nothing_can_be_played(tree: Path) -> None:
    for split in ("train", "valid_seen", "valid_unseen"):
        for game in find_games(tree, split):
            edit(game, lambda content: content.update(solvable=False))
    assert check_tree(tree).broken == {
        TREE: "no game can be played: all are unsolvable or of an unsupported kind"
    }


def test_an_unknown_task_type(tree: Path) -> None:
    game = find_games(tree, "train")[0]
    game.parent.parent.rename(game.parent.parent.with_name("fold_the_towel-Towel-None-Bed-1"))
    traj = next(tree.glob(f"{TREE}/train/fold*/*/traj_data.json"))
    traj.write_text('{"task_type": "fold_the_towel"}')
    found = check_tree(tree)
    assert list(found.broken.values()) == ["unknown task type 'fold_the_towel'"]
    assert [each.task_type for each in found.games if each.fault] == ["unknown"]
    traj.unlink()
    (why,) = check_tree(tree).broken.values()
    assert "cannot read the task type" in why


def test_a_walkthrough_that_loses_is_found_by_playing(tree: Path) -> None:
    game = find_games(tree, "train")[0]
    edit(game, lambda content: content["walkthrough"].pop())
    assert check_tree(tree).broken == {}
    (why,) = check_tree(tree, replay=True).broken.values()
    assert why.startswith("the walkthrough does not win: after all ")


def test_a_problem_that_the_engine_refuses_is_found_by_playing(tree: Path) -> None:
    game = find_games(tree, "train")[0]
    edit(game, replace("pddl_problem", "(:init", "(:inet"))
    assert check_tree(tree).broken == {}
    (why,) = check_tree(tree, replay=True).broken.values()
    assert why.startswith("cannot load a game")


@pytest.mark.parametrize(
    "unsupported",
    ["{task_type}-AppleSliced-None-Fridge-1", "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1"],
)
def test_what_is_never_played_is_skipped_as_by_find_games(tree: Path, unsupported: str) -> None:
    unsolvable, other, _ = find_games(tree, "train")
    edit(unsolvable, lambda content: content.update(solvable=False))
    task = other.parent.parent
    name = unsupported.format(task_type=task.name.split("-")[0])
    edit(other.with_name("traj_data.json"), lambda c: c.update(task_type=name.split("-")[0]))
    task.rename(task.with_name(name))
    found = check_tree(tree, replay=True)
    assert found.broken == {}
    played = {game.file for game in found.games if not game.skipped and game.split == "train"}
    assert played == {g.relative_to(tree).as_posix() for g in find_games(tree, "train")}
    assert not any(game.replayed for game in found.games if game.skipped)


def test_changed_or_missing_games_do_not_match_the_manifest(
    generated_games: Path, tmp_path: Path
) -> None:
    """A changed or missing game fails the manifest check, even if the remaining games are valid."""
    data = tmp_path / "data"
    shutil.copytree(generated_games, data)
    game = find_games(data, "train")[0]
    content = game.read_bytes()
    game.write_bytes(content + b"\n")
    assert list(check_tree(data).broken) == [MANIFEST]
    game.write_bytes(content)
    assert check_tree(data).broken == {}
    game.unlink()
    assert list(check_tree(data).broken) == [MANIFEST]
    (data / MANIFEST).write_text("{}")
    assert "cannot be read" in check_tree(data).broken[MANIFEST]


def test_games_in_another_split_do_not_match_the_manifest(
    generated_games: Path, tmp_path: Path
) -> None:
    """The manifest is of the names of games, too: a split's name does not change unnoticed."""
    data = shutil.copytree(generated_games, tmp_path / "data")
    split = data / TREE / "valid_unseen"  # the last one, so that the games keep their order
    split.rename(split.with_name("valid_unseen_2"))
    assert list(check_tree(data).broken) == [MANIFEST]


def test_no_tree(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a directory"):
        check_tree(tmp_path)
    (tmp_path / TREE).mkdir()
    with pytest.raises(DataError, match="no game file"):
        check_tree(tmp_path)
