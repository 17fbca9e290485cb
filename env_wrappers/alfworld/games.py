"""Finding the game files of an ALFWorld data directory."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

TASK_TYPES: tuple[str, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six task families, in ALFWorld's own order."""

TREE = "json_2.1.1"
GAME_FILE = "game.tw-pddl"
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')


class DataError(ValueError):
    """Game data that cannot be used; the message names the thing and the remedy on one line."""


def find_games(data: str | Path, split: str, task_types: Sequence[str] | None = None) -> list[Path]:
    """Return the solvable games of a split, sorted by path.

    As in ALFWorld itself, paths that mention ``movable`` or ``Sliced`` are skipped: the engine
    does not support those tasks.

    Args:
        data: the directory holding ``json_2.1.1``, or ``json_2.1.1`` itself.
        split: a folder of it, e.g. ``train``, ``valid_seen``, ``valid_unseen``.
        task_types: the families to keep (see ``TASK_TYPES``); None keeps all.

    Raises:
        DataError: the split is missing, a task type is unknown, or no game is left.
    """
    wanted = set(TASK_TYPES if task_types is None else task_types)
    unknown = wanted - set(TASK_TYPES)
    if unknown:
        raise DataError(f"unknown task type {min(unknown)!r}: choose from {', '.join(TASK_TYPES)}")
    root = Path(data).expanduser()
    folder = (root if root.name == TREE else root / TREE) / split
    if not folder.is_dir():
        raise DataError(f"no ALFWorld games: {folder} is not a directory. {_remedy()}")
    found = sorted(folder.glob(f"*/*/{GAME_FILE}"))
    games = [game for game in found if _is_supported(game) and task_type_of(game) in wanted]
    games = [game for game in games if _SOLVABLE.search(game.read_bytes())]
    if not games:
        kinds = "any task type" if task_types is None else " or ".join(task_types) or "no task type"
        raise DataError(
            f"no solvable ALFWorld game of {kinds} in {folder} ({len(found)} game files there). "
            + _remedy()
        )
    return games


def task_type_of(game: Path) -> str:
    """Return the task family of a game file.

    The name of its task folder starts with it; ``traj_data.json`` is read only where it does not.

    Raises:
        DataError: neither names a family.
    """
    prefix = game.parent.parent.name.split("-", 1)[0]
    if prefix in TASK_TYPES:
        return prefix
    traj = game.parent / "traj_data.json"
    try:
        return str(json.loads(traj.read_text(encoding="utf-8"))["task_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"cannot read the task type of {game} from {traj}: {error!r}") from error


def _is_supported(game: Path) -> bool:
    return not any("movable" in part or "Sliced" in part for part in game.parts[-3:])


def _remedy() -> str:
    return (
        f"Expected <data>/{TREE}/<split>/<task>/<trial>/{GAME_FILE}: give such a directory "
        "(`alfworld-download` fetches the official one), or none to have games generated"
    )
