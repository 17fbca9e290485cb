"""examples/split_by_scene.py: splits of games that share no scenes."""

import subprocess
import sys
from pathlib import Path

from env_wrappers.alfworld.games import GAME_FILE, TREE, find_games
from tests.paths import ROOT


def test_splits_share_no_scenes(tmp_path: Path) -> None:
    """Of each room type, half of the scenes are train, a sixth dev and a third test."""
    for number, scene in enumerate([*range(1, 13), *range(301, 307)]):
        for trial in range(1 + scene % 2):
            split = ("train", "valid_seen")[(number + trial) % 2]
            task = f"pick_and_place_simple-Mug-None-Desk-{scene}"
            game = tmp_path / "data" / TREE / split / task / f"trial_{trial}" / GAME_FILE
            game.parent.mkdir(parents=True)
            game.write_text('{"solvable": true}')
            (game.parent / "traj_data.json").write_text("{}")
    script = ROOT / "examples" / "split_by_scene.py"
    command = [sys.executable, str(script), str(tmp_path / "data"), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    games = {split: find_games(tmp_path / "out", split) for split in ("train", "dev", "test")}
    assert done.stdout == f"{ {split: len(found) for split, found in games.items()} }\n"
    assert sum(map(len, games.values())) == 27
    scenes = {
        split: {int(game.parts[-3].rpartition("-")[2]) for game in found}
        for split, found in games.items()
    }
    sizes = {
        split: (len(found), len([s for s in found if s > 300])) for split, found in scenes.items()
    }
    assert sizes == {"train": (9, 3), "dev": (3, 1), "test": (6, 2)}
    assert len(set().union(*scenes.values())) == 18
    for game in [game for found in games.values() for game in found]:
        assert (game.parent / "traj_data.json").is_file()
    for data, problem in ((tmp_path / "none", "no games in"), (tmp_path / "data", "is not empty")):
        command[2] = str(data)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert problem in done.stderr
