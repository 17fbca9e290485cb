"""The goal that the explorer reads from the file beside a game."""

import json
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.alfworld.explorer import Goal, goal_of
from env_wrappers.errors import DataError

PLACE = "pick_and_place_simple"


def written(folder: Path, content: Any) -> Path:
    (folder / "traj_data.json").write_text(json.dumps(content))
    return folder / "game.tw-pddl"


@pytest.mark.parametrize(
    ("params", "goal"),
    [
        ({"object_target": "Mug", "parent_target": "Shelf"}, Goal(PLACE, "mug", "shelf", "")),
        (
            {"object_target": "Mug", "parent_target": None, "toggle_target": "DeskLamp"},
            Goal(PLACE, "mug", "", "desklamp"),
        ),
    ],
)
def test_the_goal_of_a_game(tmp_path: Path, params: dict[str, Any], goal: Goal) -> None:
    assert goal_of(written(tmp_path, {"task_type": PLACE, "pddl_params": params})) == goal


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"task_type": PLACE, "pddl_params": []},
        {"task_type": PLACE, "pddl_params": {}},
        {"task_type": PLACE, "pddl_params": {"object_target": "Mug"}},
        {"task_type": PLACE, "pddl_params": {"parent_target": "Shelf"}},
        {"pddl_params": {"object_target": "Mug", "parent_target": "Shelf"}},
    ],
)
def test_a_file_that_does_not_say_the_goal(tmp_path: Path, content: Any) -> None:
    game = written(tmp_path, content)
    with pytest.raises(DataError, match=f"the explorer needs traj_data.json beside {game}: "):
        goal_of(game)
