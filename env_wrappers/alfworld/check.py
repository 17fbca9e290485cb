"""Check a directory of ALFWorld games: what it contains, and which files are broken."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import (
    GAME_FILE,
    TASK_TYPES,
    TREE,
    DataError,
    game_files,
    is_supported,
    task_type_of,
)
from env_wrappers.alfworld.planner import why_not_won
from env_wrappers.alfworld.trust import require_alfworld
from env_wrappers.alfworld.workers import map_games, workers_for
from env_wrappers.datasets import MANIFEST
from env_wrappers.files import open_regular, read_json

UNKNOWN_FAMILY = "unknown"

_TEXTS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True)
class GameCheck:
    """Result of checking one game file.

    Attributes:
        file: path relative to the data directory.
        split: name of the split folder.
        family: task type.
        fault: one-line reason why the file is broken; None if it is not.
        skipped: whether the game is not played: unsolvable, or of an unsupported kind.
        replayed: whether the walkthrough was played and won.
    """

    file: str
    split: str
    family: str
    fault: str | None = None
    skipped: bool = False
    replayed: bool = False


@dataclass(frozen=True)
class TreeCheck:
    """All games of a data directory, sorted by file, and faults of the directory as a whole."""

    kind: str
    """"generated" (with a manifest) or "official"."""
    games: list[GameCheck]
    faults: dict[str, str]
    """Faults outside the games: reason by file or folder."""

    @property
    def broken(self) -> dict[str, str]:
        """All faults: reason by file."""
        return {game.file: game.fault for game in self.games if game.fault} | self.faults


def check_tree(
    data: Path,
    replay: bool = False,
    trusted: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> TreeCheck:
    """Check every game file of a data directory.

    Args:
        data: the directory holding ``json_2.1.1``, or ``json_2.1.1`` itself.
        replay: also play each recorded walkthrough, at about a second per game.
        trusted: accept any grammar and PDDL domain; grammar code may run when a game is played.
        on_progress: called after each game with the number checked and the total.

    Raises:
        DataError: the directory is missing, unreadable, or contains no game file.
    """
    data = Path(data).expanduser()
    tree = data if data.name == TREE else data / TREE
    if not tree.is_dir():
        raise DataError(f"no ALFWorld games: {tree} is not a directory. {_expected()}")
    unreadable: list[OSError] = []
    files = game_files(tree, levels=3, on_error=unreadable.append)
    if not files and unreadable:
        raise DataError(f"cannot read {unreadable[0].filename}: {unreadable[0].strerror}")
    if not files:
        raise DataError(f"no ALFWorld games: no game file in {tree}. {_expected()}")
    games = []
    # Without replay, one process is faster than starting others.
    workers = workers_for(len(files)) if replay else 1
    work = functools.partial(check_game, replay=replay, trusted=trusted)
    for check in map_games(work, files, workers):
        games.append(check)
        on_progress(len(games), len(files))
    manifest = tree.parent / MANIFEST
    kind = "generated" if manifest.is_file() else "official"
    faults = {}
    for error in unreadable:
        name = Path(error.filename).relative_to(tree.parent).as_posix()
        faults[name] = f"cannot be read: {error.strerror}"
    fault = _manifest_fault(manifest, files) if kind == "generated" else None
    if all(game.skipped for game in games):
        faults[TREE] = "no game can be played: all are unsolvable or of an unsupported kind"
    return TreeCheck(kind, games, faults | ({MANIFEST: fault} if fault else {}))


def check_game(file: Path, replay: bool, trusted: bool = False) -> GameCheck:
    """Check one game file."""
    name, split = Path(*file.parts[-5:]).as_posix(), file.parts[-4]
    family = UNKNOWN_FAMILY
    try:
        found = task_type_of(file)
        if found not in TASK_TYPES:
            raise DataError(f"unknown task family {found!r}")
        family = found
        game = _read(file)
        if not trusted:
            require_alfworld(game)
            if "(:goal" not in game["pddl_problem"] or "UNKNOWN GOAL" in game["grammar"]:
                raise DataError("it does not say what the goal is")
        skipped = not game["solvable"] or not is_supported(file)
        played = replay and not skipped and bool(game.get("walkthrough"))
        if played:
            _replay(game, trusted)
    except DataError as error:
        return GameCheck(name, split, family, fault=" ".join(str(error).split()))
    return GameCheck(name, split, family, skipped=skipped, replayed=played)


def _read(file: Path) -> dict[str, Any]:
    try:
        game = read_json(file)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"not JSON, perhaps cut off: {error}") from error
    if not isinstance(game, dict):
        raise DataError("not a JSON object")
    for key in _TEXTS:
        if not isinstance(game.get(key), str) or not game[key].strip():
            raise DataError(f"no text under the key {key!r}")
    if not isinstance(game.get("solvable"), bool):
        raise DataError("no true or false under the key 'solvable'")
    plan = game.get("walkthrough", [])
    if plan is not None and not (isinstance(plan, list) and all(isinstance(c, str) for c in plan)):
        raise DataError("the walkthrough is not a list of commands")
    return game


def _replay(game: dict[str, Any], trusted: bool) -> None:
    engine = GameEngine(game, trusted)
    fault = why_not_won(engine, engine.commands(game["walkthrough"]))
    if fault:
        raise DataError(f"the walkthrough does not win: {fault}")


def _manifest_fault(manifest: Path, files: list[Path]) -> str | None:
    """Return how a generated data set differs from its manifest, or None."""
    try:
        expected = read_json(manifest)["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"cannot be read: {error!r}"
    digest = hashlib.sha256()
    for file in files:
        try:
            with open_regular(file) as opened:
                content = opened.read()
        except OSError:
            continue  # reported with the game; the digest cannot match
        digest.update(file.relative_to(manifest.parent).as_posix().encode() + b"\0" + content)
    if digest.hexdigest() != expected:
        return "the game files are not the ones that were generated: their sha256 differs"
    return None


def _expected() -> str:
    return (
        f"Expected <data>/{TREE}/<split>/<task>/<trial>/{GAME_FILE}: make games with "
        "`hgpo data generate alfworld`, or fetch the official ones with "
        "`hgpo data download alfworld`"
    )
