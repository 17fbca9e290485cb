"""TextCraft's tasks, splits, determinism and infos."""

import json
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import env_wrappers  # noqa: F401 (registers the environments)
from env_wrappers.errors import DataError
from env_wrappers.textcraft import recipes as books
from env_wrappers.textcraft.env import MAX_ACTION, SPLITS, TextCraftEnv
from tests.unit.env_wrappers.textcraft.textcraft_data import (
    item,
    needs_package,
    recipes,
    shapeless,
    write_recipes,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipes(tmp_path_factory.mktemp("textcraft") / "data")


def played(env: TextCraftEnv, seed: int) -> list[tuple[Any, ...]]:
    """Return all results of a random episode."""
    rng = random.Random(seed)
    seen: list[tuple[Any, ...]] = [env.reset(seed=seed)]
    done = False
    while not done:
        step = env.step(rng.choice([*seen[-1][-1]["admissible_actions"], "dance"]))
        done = step[2] or step[3]
        seen.append(step)
    return seen


def test_an_episode(data: Path) -> None:
    env = gymnasium.make("hgpo/TextCraft-v0", data=data, split="train", distractors=2)
    task = env.get_wrapper_attr("goals").index("minecraft:lever")
    observation, info = env.reset(seed=task)
    assert observation == info["goal"]
    assert observation.startswith("Crafting commands:\ncraft ")
    assert observation.endswith("\n\nGoal: craft lever.")
    assert info["game"] == "lever"
    assert info["task_type"] == "depth 2"
    observation, reward, terminated, truncated, info = env.step("get 1 stick")
    assert observation == "Could not find stick"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["inadmissible"], info["inadmissible_count"], info["won"]) == (True, 1, False)
    for action in ("get 2 bamboo", "craft 1 stick using 2 bamboo", "get 1 cobblestone"):
        info = env.step(action)[-1]
        assert (info["inadmissible"], info["inadmissible_count"]) == (False, 1)
    action = "craft 1 lever using 1 stick, 1 cobblestone"
    assert action in info["admissible_actions"]
    observation, reward, terminated, _, info = env.step(action)
    assert (observation, reward, terminated) == ("Crafted 1 minecraft:lever", 10.0, True)
    assert info["won"]


def test_a_very_long_action_is_not_read(data: Path) -> None:
    env = TextCraftEnv(data)
    env.reset(seed=0)
    assert env.step("inventory" + "x" * MAX_ACTION)[0] == "Could not execute "


def test_commands_of_the_goal_and_distractors(data: Path) -> None:
    """All commands of the goal are listed, and each distractor uses one of their ingredients."""
    for distractors in (0, 2, 100):
        env = TextCraftEnv(data, distractors=distractors)
        for task in range(env.num_tasks):
            lines = env.reset(seed=task)[0].split("\n")[1:-2]
            book = env._book
            needed = book.needed_for(env.goals[task])
            parts = {part.name for recipe in needed for part in recipe.ingredients}
            uses = {use.command for part in parts for use in book.uses_of(part)}
            commands = {recipe.command for recipe in needed}
            assert commands <= set(lines) <= commands | uses
            assert len(lines) == len(set(lines)) <= len(commands) + distractors
            if distractors == 100:
                assert set(lines) == commands | uses


def test_the_same_seed_plays_the_same_episode(data: Path) -> None:
    one, other = TextCraftEnv(data), TextCraftEnv(data)
    for seed in range(2 * one.num_tasks):
        expected = played(one, seed)
        assert played(other, seed) == expected
        task = seed % one.num_tasks
        assert other.reset(options={"goal": task}) == expected[0]


def test_tasks_do_not_depend_on_the_process(data: Path) -> None:
    """A task's text equals a recorded text, so it does not depend on string hashes."""
    env = TextCraftEnv(data, distractors=1)
    assert env.reset(options={"goal": env.goals.index("minecraft:torch")})[0] == TORCH


TORCH = """\
Crafting commands:
craft 4 birch planks using 1 birch logs
craft 4 torch using 1 coal, 1 stick
craft 4 oak planks using 1 oak logs
craft 4 stick using 2 planks
craft 1 stick using 2 bamboo
craft 4 acacia planks using 1 acacia logs
craft 3 birch sign using 6 birch planks, 1 stick
craft 4 spruce planks using 1 spruce logs

Goal: craft torch."""


def splits(data: Path | None = None, **options: Any) -> Mapping[str, list[str]]:
    return {split: TextCraftEnv(data, split, **options).goals for split in SPLITS}


def check_splits(found: Mapping[str, list[str]]) -> None:
    goals = [goal for split in found.values() for goal in split]
    assert len(goals) == len(set(goals)), "no goal is in two splits"
    assert all(split == sorted(split) for split in found.values())


def test_splits_share_no_goal(data: Path) -> None:
    found = splits(data)
    check_splits(found)
    assert sorted(goal for split in found.values() for goal in split) == sorted(
        TextCraftEnv(data)._book.goals()
    )


@needs_package
def test_splits_of_the_package() -> None:
    found = splits()
    check_splits(found)
    assert {split: len(goals) for split, goals in found.items()} == {
        "train": 211,
        "dev": 105,
        "test": 103,
    }
    for split, goals in splits(max_commands=8).items():
        assert set(goals) < set(found[split]), "the limit moves no goal"
    depth = TextCraftEnv()._book.depth
    for goals in found.values():
        assert {depth(goal) for goal in goals} == {2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "valid"}, "unknown split 'valid': choose train, dev, test"),
        ({"distractors": -1}, "distractors must be at least 0, not -1"),
        ({"max_commands": 1}, "no goals in train with max_commands=1: raise it"),
    ],
)
def test_bad_options(data: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        TextCraftEnv(data, **options)
    assert str(raised.value) == message


def test_recipes_without_goals_in_a_split(tmp_path: Path) -> None:
    few = {name: recipes()[name] for name in ("oak_planks", "stick", "lever")}
    data = write_recipes(tmp_path / "data", few)
    with pytest.raises(DataError, match=r"^no goals in dev: take another split, or more recipes$"):
        TextCraftEnv(data, split="dev", max_commands=3)


def test_a_goal_that_does_not_exist(data: Path) -> None:
    env = TextCraftEnv(data)
    with pytest.raises(DataError, match=f"no goal 99 in train: there are {env.num_tasks}"):
        env.reset(options={"goal": 99})


def test_a_pickle_whose_recipes_changed_is_refused(tmp_path: Path) -> None:
    data = write_recipes(tmp_path / "data")
    pickled = pickle.dumps(TextCraftEnv(data))
    recipe = shapeless(item("a"), item("b"))
    (data / "recipes" / "more.json").write_text(json.dumps(recipe))
    books._open_book.cache_clear()  # as in another process
    with pytest.raises(DataError, match="does not hold the recipes that were pickled"):
        pickle.loads(pickled)
