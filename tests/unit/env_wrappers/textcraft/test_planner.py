"""Plans win, and no other way to craft the goal takes fewer actions."""

from collections import deque
from pathlib import Path

import pytest

from env_wrappers.errors import DataError
from env_wrappers.textcraft.env import SPLITS, TextCraftEnv
from env_wrappers.textcraft.game import CraftingGame
from env_wrappers.textcraft.players import find_choice, plan
from env_wrappers.textcraft.recipes import RecipeBook, open_book
from tests.unit.env_wrappers.textcraft.textcraft_data import (
    item,
    needs_package,
    recipes,
    shapeless,
    tag,
    write_recipes,
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RecipeBook:
    return open_book(write_recipes(tmp_path_factory.mktemp("t") / "data"))


def planned(book: RecipeBook, goal: str) -> list[str]:
    return plan(goal, find_choice(book, goal))


def test_a_plan(book: RecipeBook) -> None:
    """A plan adds up the planks for signs and sticks and crafts them in two executions."""
    assert planned(book, "minecraft:oak_sign") == [
        "get 2 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 stick using 2 oak planks",
        "craft 3 oak sign using 6 oak planks, 1 stick",
    ]


def fewest(book: RecipeBook, goal: str, gets: list[str]) -> int:
    """Return the length of a shortest plan with these `get` actions, by breadth-first search."""
    game = CraftingGame(book, goal, book.needed_for(goal))
    start: tuple[tuple[str, int], ...] = ()
    queue, lengths = deque([start]), {start: 0}
    while queue:
        state = queue.popleft()
        game.inventory = dict(state)
        crafts = [action for action in game.actions if action.startswith("craft")]
        for action in [*gets, *crafts]:
            game.inventory, game.won = dict(state), False
            game.act(action)
            if game.won:
                return lengths[state] + 1
            after = tuple(sorted(game.inventory.items()))
            if after not in lengths and sum(game.inventory.values()) <= 24:
                lengths[after] = lengths[state] + 1
                queue.append(after)
    raise AssertionError(f"no plan for {goal}")


@pytest.mark.parametrize("name", ["oak_slab", "oak_sign", "lever", "ladder", "torch", "fuel"])
def test_no_plan_is_shorter(book: RecipeBook, name: str) -> None:
    goal = f"minecraft:{name}"
    gets = ["get 1 oak logs", "get 2 oak logs", "get 2 bamboo", "get 1 coal", "get 1 cobblestone"]
    assert len(planned(book, goal)) == fewest(book, goal, [*gets, "get 1 coals"])


def test_the_cheaper_recipe_depends_on_the_goal(book: RecipeBook) -> None:
    """A single stick is crafted from bamboo, seven sticks from planks."""
    assert "craft 1 stick using 2 bamboo" in planned(book, "minecraft:torch")
    assert "craft 1 stick using 2 bamboo" not in planned(book, "minecraft:ladder")


def test_an_item_that_needs_itself_cannot_be_crafted(tmp_path: Path) -> None:
    """Items in a cycle through a group of recipes cannot be crafted and are not goals."""
    made = recipes() | {
        "a": shapeless(item("egg"), item("nest"), group="animal"),
        "b": shapeless(item("nest"), tag("animal")),
    }
    book = open_book(write_recipes(tmp_path / "data", made))
    for name in ("egg", "nest", "coal", "planks"):
        with pytest.raises(DataError, match=f"{name} cannot be crafted"):
            find_choice(book, f"minecraft:{name}")
    assert "minecraft:egg" not in book.goals()


@needs_package
@pytest.mark.parametrize("split", SPLITS)
def test_plans_win_every_task(split: str) -> None:
    env = TextCraftEnv(split=split)
    book = open_book(None)
    for task, goal in enumerate(env.goals):
        env.reset(seed=task)
        won = False
        for action in planned(book, goal):
            assert not won
            _, reward, won, truncated, info = env.step(action)
            assert not info["inadmissible"]
            assert not truncated
        assert won, goal
        assert info["won"]
        assert reward == 10.0
