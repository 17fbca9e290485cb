"""Copy ALFWorld games to the splits train, dev and test, which share no scenes.

    python examples/split_by_scene.py DATA OUT
    hgpo train alfworld_official_pocket env.data=OUT

The official `valid_unseen` has four scenes, too few to compare methods. Of each kind of room, a
third of the scenes become `test`, a sixth `dev`, on which settings can be chosen, and half `train`.
The games of all splits of DATA are used.
"""

import argparse
import shutil
from pathlib import Path

from env_wrappers.alfworld.games import GAME_FILE, TREE
from env_wrappers.datasets import new_directory

SPLITS = ("dev", "train", "test", "train", "train", "test")


def scene_of(game: Path) -> int:
    """Return the scene's number: 1 to 30 are kitchens, 201 to 230 living rooms, and so on.

    It ends the name of the task's folder, as in ``pick_and_place_simple-Mug-None-Desk-308``.
    """
    return int(game.parts[-3].rpartition("-")[2])


def split_by_scene(data: Path, out: Path) -> dict[str, int]:
    """Copy the games of `data` to `out`; return the number of games per split."""
    games = sorted((data / TREE).glob(f"*/*/*/{GAME_FILE}"))
    if not games:
        raise ValueError(f"no games in {data / TREE}: DATA is the folder of alfworld-download")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: remove it, or choose another directory")
    split_of: dict[int, str] = {}
    for room in (0, 2, 3, 4):
        scenes = sorted({scene_of(game) for game in games if scene_of(game) // 100 == room})
        split_of |= {scene: SPLITS[place % len(SPLITS)] for place, scene in enumerate(scenes)}
    counts = dict.fromkeys(("train", "dev", "test"), 0)
    with new_directory(out) as partial:
        for game in games:
            split = split_of[scene_of(game)]
            shutil.copytree(game.parent, partial / TREE / split / Path(*game.parts[-3:-1]))
            counts[split] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Copy ALFWorld games to splits without common scenes."
    )
    parser.add_argument("data", type=Path, help="directory of ALFWorld's games")
    parser.add_argument("out", type=Path, help="directory to create")
    arguments = parser.parse_args()
    try:
        print(split_by_scene(arguments.data, arguments.out))
    except ValueError as error:
        parser.error(str(error))
