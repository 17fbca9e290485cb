"""Oracle plans win sixty generated games of every task type: `pytest -m slow`."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import gymnasium
import pytest

import env_wrappers  # noqa: F401  registers the environment
from env_wrappers.alfworld.games import TASK_TYPES
from env_wrappers.alfworld.generator import GenerationSpec, generate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
GAMES, SCENES = 60, 10  # per task type


def test_oracle_plans_win_through_the_environment(tmp_path: Path) -> None:
    """The recorded plan wins every game of every task type, in at least ten scenes each."""
    generate(tmp_path / "games", GenerationSpec(seed=3, splits={"train": GAMES * len(TASK_TYPES)}))
    env = gymnasium.make("hgpo/ALFWorld-v0", data=tmp_path / "games", split="train")
    won: Counter[str] = Counter()
    scenes = defaultdict(set)
    for game in range(env.get_wrapper_attr("num_tasks")):
        _, info = env.reset(options={"game": game})
        path, task_type = Path(info["game"]), info["task_type"]
        reward, terminated = 0.0, False
        for action in json.loads(path.read_text())["walkthrough"]:
            _, reward, terminated, _, info = env.step(action)
        won[task_type] += terminated and reward == 10 and info["won"]
        scenes[task_type].add(path.parent.parent.name.rpartition("-")[2])
    assert won == dict.fromkeys(TASK_TYPES, GAMES)
    assert all(len(scenes[task_type]) >= SCENES for task_type in TASK_TYPES)
