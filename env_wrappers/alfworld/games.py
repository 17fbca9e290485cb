"""Find the game files of an ALFWorld data directory."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from env_wrappers.errors import DataError, check_known
from env_wrappers.files import check_name, expand_home, parse_json, read_json, read_regular

TASK_TYPES: tuple[str, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task types, in ALFWorld's own order."""

TREE = "json_2.1.1"
GAME_FILE = "game.tw-pddl"
DATA_VARIABLE = "ALFWORLD_DATA"
_DEFAULT_DATA = "~/.cache/alfworld"  # default of the alfworld package
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(true|false)')

REMEDY = (
    f"Expected <data>/{TREE}/<split>/<task>/<trial>/{GAME_FILE}: give such a directory, or name it "
    f"in {DATA_VARIABLE} (`alfworld-download` fetches the official one, "
    "`hgpo data generate alfworld` makes one); in `hgpo train`, give none to have games generated"
)


class GameList(list[str]):
    """Paths of games; a list that can be referenced weakly."""


_lists: WeakValueDictionary[tuple[Any, ...], GameList] = WeakValueDictionary()


def shared_games(
    data: str | Path | None, split: str, task_types: Sequence[str] | None = None
) -> GameList:
    """Return the paths of `find_games`, and the same list as long as any environment holds it.

    A training run has thousands of environments, and reading all games can take seconds.
    All environments of a process that exist together have the same games for the same seeds, also
    if files are added meanwhile.
    """
    kinds = None if task_types is None else tuple(task_types)
    folder, _ = _split_folder(data, split)
    key = (folder, folder.absolute(), kinds)  # the paths of games begin with `folder` as given
    games = _lists.get(key)
    if games is None:
        games = _lists[key] = GameList(map(str, find_games(data, split, task_types)))
    return games


def find_games(
    data: str | Path | None, split: str, task_types: Sequence[str] | None = None
) -> list[Path]:
    """Return the solvable games of a split, sorted by path.

    As in ALFWorld, paths containing ``movable`` or ``Sliced`` are skipped: the engine does not
    support those tasks.

    Args:
        data: the directory holding ``json_2.1.1``, or ``json_2.1.1`` itself. None uses
            ``$ALFWORLD_DATA`` or, if that is not set, ALFWorld's default.
        split: folder name, e.g. ``train``, ``valid_seen``, ``valid_unseen``.
        task_types: the task types to keep (see ``TASK_TYPES``); None keeps all.

    Raises:
        DataError: the split is missing, a task type is unknown, a file cannot be read or is not
            JSON, or no game is left.
    """
    wanted = TASK_TYPES if task_types is None else task_types
    for task_type in wanted:
        check_known("task type", task_type, TASK_TYPES)
    folder, source = _split_folder(data, split)
    try:
        if not folder.is_dir():
            raise DataError(f"no ALFWorld games: {folder}{source} is not a directory. {REMEDY}")
        found = game_files(folder, levels=2)
    except OSError as error:
        where = f"{error.filename or folder}{source}"
        raise DataError(f"cannot read {where}: {error.strerror}. {REMEDY}") from error
    games = [game for game in found if is_supported(game) and task_type_of(game) in wanted]
    games = [game for game in games if is_solvable(game)]
    if not games:
        kinds = "any task type" if task_types is None else " or ".join(task_types) or "no task type"
        raise DataError(
            f"no solvable ALFWorld game of {kinds} in {folder}{source} "
            f"({len(found)} game files there). {REMEDY}"
        )
    return games


def _raise(error: OSError) -> None:
    raise error


def game_files(
    folder: Path, levels: int, on_error: Callable[[OSError], None] = _raise
) -> list[Path]:
    """Return the game files exactly ``levels`` folders below ``folder``, sorted.

    Args:
        folder: where to start.
        levels: 2 from a split folder, 3 from the data directory.
        on_error: called for each unreadable folder, which ``Path.glob`` would silently skip.
    """
    found = []
    top = len(folder.parts)
    for name, folders, files in os.walk(folder, onerror=on_error, followlinks=True):
        here = Path(name)
        if len(here.parts) - top == levels:
            if GAME_FILE in folders + files:
                found.append(here / GAME_FILE)
            folders.clear()
    return sorted(found)


def hash_of_games(data: Path, games: Sequence[Path]) -> str:
    """Return the SHA-256 of the names and contents of game files; unreadable ones are left out."""
    digest = hashlib.sha256()
    for game in games:
        with contextlib.suppress(OSError):
            content = read_regular(game)
            digest.update(game.relative_to(data).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()


def is_solvable(game: Path) -> bool:
    """Return whether a game file is marked solvable.

    Raises:
        DataError: the file cannot be read, or is not JSON.
    """
    try:
        content = read_regular(game)
    except OSError as error:
        raise DataError(
            f"cannot read {game}: {error.strerror}; make it readable, remove it or fetch it again"
        ) from error
    mark = _SOLVABLE.search(content)
    if mark is None:
        # Parsing every file is slow. A truncated file lacks the flag, or fails when it is loaded.
        try:
            parse_json(content)
        except ValueError as error:
            raise DataError(
                f"{game} is truncated or not a game: {error}; remove the file or fetch it again"
            ) from error
    return mark is not None and mark.group(1) == b"true"


def task_type_of(game: Path) -> str:
    """Return the task type of a game file.

    The task folder's name starts with it; otherwise, ``traj_data.json`` is read, whose
    ``task_type`` may be none of ``TASK_TYPES``.

    Raises:
        DataError: neither has a task type.
    """
    prefix = game.parent.parent.name.split("-", 1)[0]
    if prefix in TASK_TYPES:
        return prefix
    traj = game.parent / "traj_data.json"
    try:
        return str(read_json(traj)["task_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read the task type of {game} from {traj}: {error!r}") from error


def is_supported(game: Path) -> bool:
    """Return whether the engine supports a game's task, judged by its folder names."""
    return not any("movable" in part or "Sliced" in part for part in game.parts[-3:])


def find_tree(data: str | Path | None) -> Path:
    """Return the folder ``json_2.1.1`` of a data directory; see ``find_games``."""
    named = os.environ.get(DATA_VARIABLE) or _DEFAULT_DATA
    root = expand_home(named if data is None else data)
    return root if root.name == TREE else root / TREE


def _split_folder(data: str | Path | None, split: str) -> tuple[Path, str]:
    """Return the folder of a split, and the source of the path if it is not an argument."""
    source = f" (from {DATA_VARIABLE} or its default)" if data is None else ""
    return find_tree(data) / check_name(split), source
