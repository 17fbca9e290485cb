"""Check a directory of ALFWorld games: what it contains, and which files are broken."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, StringConstraints, TypeAdapter

from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import (
    REMEDY,
    TASK_TYPES,
    TREE,
    find_tree,
    game_files,
    hash_of_games,
    is_supported,
    task_type_of,
)
from env_wrappers.alfworld.planner import why_not_won
from env_wrappers.alfworld.trust import require_alfworld
from env_wrappers.datasets import MANIFEST
from env_wrappers.errors import DataError
from env_wrappers.files import read_json, read_regular, validate_json
from env_wrappers.processes import map_in_processes

_Text = Annotated[str, StringConstraints(pattern=r"\S")]


class _Game(BaseModel, strict=True):
    pddl_domain: _Text
    grammar: _Text
    pddl_problem: _Text
    solvable: bool
    walkthrough: list[str] | None = None


_game = TypeAdapter(_Game)


@dataclass(frozen=True)
class GameCheck:
    """Result of checking one game file.

    Attributes:
        file: path relative to the data directory.
        split: name of the split folder.
        task_type: type of its task.
        fault: one-line reason why the file is broken; None if it is not.
        skipped: whether the game is not played: unsolvable, or of an unsupported kind.
        replayed: whether the walkthrough was played and won.
    """

    file: str
    split: str
    task_type: str
    fault: str | None = None
    skipped: bool = False
    replayed: bool = False


@dataclass(frozen=True)
class TreeCheck:
    """All games of a data directory, sorted by file, and all faults."""

    kind: str
    """"generated" (with a manifest) or "official"."""
    games: list[GameCheck]
    broken: dict[str, str]
    """Reason by file or folder."""


def check_tree(
    data: Path | None,
    replay: bool = False,
    trusted: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TreeCheck:
    """Check every game file of a data directory.

    Args:
        data: see ``find_games``.
        replay: also play each recorded walkthrough, at about a second per game.
        trusted: accept any grammar and PDDL domain; grammar code may run when a game is played.
        on_progress: called after each game with the number checked and the total.

    Raises:
        DataError: the directory is missing, unreadable, or contains no game file.
    """
    tree = find_tree(data)
    if not tree.is_dir():
        raise DataError(f"no ALFWorld games: {tree} is not a directory. {REMEDY}")
    unreadable: list[OSError] = []
    files = game_files(tree, levels=3, on_error=unreadable.append)
    if not files and unreadable:
        raise DataError(f"cannot read {unreadable[0].filename}: {unreadable[0].strerror}")
    if not files:
        raise DataError(f"no ALFWorld games: no game file in {tree}. {REMEDY}")
    games = []
    work = functools.partial(check_game, replay=replay, trusted=trusted)
    # Without replay, one process is faster than starting others.
    for check in map_in_processes(work, files, None if replay else 1):
        games.append(check)
        on_progress(len(games), len(files))
    broken = {game.file: game.fault for game in games if game.fault}
    for error in unreadable:
        name = Path(error.filename).relative_to(tree.parent).as_posix()
        broken[name] = f"cannot be read: {error.strerror}"
    if all(game.skipped for game in games):
        broken[TREE] = "no game can be played: all are unsolvable or of an unsupported kind"
    manifest = tree.parent / MANIFEST
    kind = "generated" if manifest.is_file() else "official"
    if kind == "generated" and (fault := _manifest_fault(manifest, files)):
        broken[MANIFEST] = fault
    return TreeCheck(kind, games, broken)


def check_game(file: Path, replay: bool, trusted: bool) -> GameCheck:
    """Check one game file."""
    name, split = Path(*file.parts[-5:]).as_posix(), file.parts[-4]
    task_type = "unknown"
    try:
        found = task_type_of(file)
        if found not in TASK_TYPES and is_supported(file):
            raise DataError(f"unknown task type {found!r}")
        task_type = found
        game = validate_json(_game, read_regular(file), "no game")
        if not trusted:
            require_alfworld(game.model_dump())
            if "(:goal" not in game.pddl_problem or "UNKNOWN GOAL" in game.grammar:
                raise DataError("it does not say what the goal is")
        skipped = not game.solvable or not is_supported(file)
        played = replay and not skipped and bool(game.walkthrough)
        if played:
            engine = GameEngine(game.model_dump(), trusted)
            fault = why_not_won(engine, engine.commands(game.walkthrough or ()))
            if fault:
                raise DataError(f"the walkthrough does not win: {fault}")
    except (DataError, OSError) as error:
        fault = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        return GameCheck(name, split, task_type, fault=" ".join(fault.split()))
    return GameCheck(name, split, task_type, skipped=skipped, replayed=played)


def _manifest_fault(manifest: Path, files: list[Path]) -> str | None:
    """Return how a generated data set differs from its manifest, or None."""
    try:
        expected = read_json(manifest)["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be read: {error!r}"
    if hash_of_games(manifest.parent, files) == expected:
        return None
    return "the game files are not the ones that were generated: their sha256 differs"
