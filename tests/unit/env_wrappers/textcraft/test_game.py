"""The rules of crafting, and that no action raises an error or makes an amount negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.textcraft.env import listed_recipes
from env_wrappers.textcraft.game import CraftingGame
from env_wrappers.textcraft.recipes import RecipeBook, open_book
from tests.unit.env_wrappers.textcraft.textcraft_data import (
    item,
    recipes,
    shapeless,
    tag,
    write_recipes,
)

GOAL = "minecraft:lever"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RecipeBook:
    pair = {"pair": shapeless(item("pair"), item("oak_planks"), tag("planks"))}
    return open_book(write_recipes(tmp_path_factory.mktemp("t") / "data", recipes() | pair))


def begin(book: RecipeBook, goal: str = GOAL) -> CraftingGame:
    return CraftingGame(book, goal, listed_recipes(book, goal, 3))


def test_an_episode(book: RecipeBook) -> None:
    game = begin(book)
    for action, observation in (
        ("inventory", "Inventory: You are not carrying anything."),
        ("get 1 oak logs", "Got 1 oak logs"),
        ("craft 4 oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
        ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        ("get 1 cobblestone", "Got 1 cobblestone"),
        ("inventory", "Inventory: [oak planks] (2) [stick] (4) [cobblestone] (1) "),
    ):
        assert game.act(action) == observation
        assert not game.failed
        assert not game.won
    assert game.act("craft 1 lever using 1 cobblestone, 1 stick") == "Crafted 1 minecraft:lever"
    assert game.won
    assert game.inventory == {"minecraft:oak_planks": 2, "minecraft:stick": 3, GOAL: 1}


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("", "Could not execute "),
        ("dance", "Could not execute dance"),
        ("get oak logs", "Could not execute get oak logs"),
        ("get 1234567890 oak logs", "Could not execute get 1234567890 oak logs"),
        ("get 1 oak planks", "Could not find oak planks"),
        ("get 1 planks", "Could not find planks"),
        ("get 1 unicorn", "Could not find unicorn"),
        ("get 1 minecraft:oak_logs", "Could not find minecraft:oak_logs"),
        ("craft 1 lever", "Could not execute craft 1 lever"),
        ("craft 1 lever using sticks", "Wrong item format: sticks"),
        ("craft 1 lever using 1 stick", "Could not find enough items to craft minecraft:lever"),
        ("craft 4 planks using 9 oak logs", "Could not find enough items to craft None"),
        (
            "craft 4 oak planks using 2 oak logs",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, "
            "item_id='minecraft:oak_planks'), count=4)",
        ),
        (
            "craft planks using 1 oak logs",
            "Could not find a valid recipe for ItemTagWithCount(item_tag="
            "ItemTag(tag='minecraft:planks', item_id=None), count=1)",
        ),
        (
            "craft 4 oak planks using 1 oak logs, 1 coal",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, "
            "item_id='minecraft:oak_planks'), count=4)",
        ),
    ],
)
def test_actions_without_effect(book: RecipeBook, action: str, observation: str) -> None:
    game = begin(book)
    game.act("get 2 oak logs")
    game.act("get 1 coal")
    before = dict(game.inventory), game.state_hash
    assert game.act(action) == observation
    assert game.failed
    assert (dict(game.inventory), game.state_hash) == before
    game.act("inventory")
    assert not game.failed


def test_the_amount_before_the_item_does_not_count(book: RecipeBook) -> None:
    """Crafting yields the recipe's amount, whatever amount is requested, as in the original."""
    game = begin(book)
    game.act("get 1 oak logs")
    assert game.act("craft 99 oak planks using 1 oak logs") == "Crafted 4 minecraft:oak_planks"


def test_an_item_for_two_ingredients(book: RecipeBook) -> None:
    """An item that serves as two ingredients is needed twice (the original fails on this)."""
    game = begin(book)
    game.inventory = {"minecraft:oak_planks": 1}
    twice = "craft 1 pair using 1 oak planks, 1 oak planks"
    assert game.act(twice) == "Could not find enough items to craft minecraft:pair"
    game.inventory = {"minecraft:oak_planks": 2}
    assert game.act(twice) == "Crafted 1 minecraft:pair"
    assert game.inventory == {"minecraft:pair": 1}


def test_offered_actions(book: RecipeBook) -> None:
    game = begin(book)
    gets = [f"get 1 {wood} logs" for wood in ("acacia", "birch", "oak", "spruce")]
    assert game.actions[-1] == "inventory"
    assert set(game.actions) == {*gets, "get 2 bamboo", "get 1 cobblestone", "inventory"}
    game.inventory = {"minecraft:oak_planks": 2, "minecraft:birch_planks": 2}
    crafts = {action for action in game.actions if action.startswith("craft")}
    assert {
        "craft 4 stick using 2 oak planks",
        "craft 4 stick using 2 birch planks",
    } <= crafts
    assert not any("1 lever" in action for action in crafts)


def test_offered_crafts_need_both_amounts(book: RecipeBook) -> None:
    game = CraftingGame(book, GOAL, book.recipes_of("minecraft:pair"))
    game.inventory = {"minecraft:oak_planks": 1}
    assert game.actions == ["inventory"]
    game.inventory["minecraft:birch_planks"] = 1
    assert game.actions[0] == "craft 1 pair using 1 oak planks, 1 birch planks"


def test_an_action_of_two_recipes_is_offered_once(book: RecipeBook) -> None:
    game = CraftingGame(book, GOAL, book.recipes_of("minecraft:ladder") * 2)
    game.inventory = {"minecraft:stick": 7}
    assert game.actions == ["craft 3 ladder using 7 stick", "inventory"]


def test_the_hash_is_of_the_items_held(book: RecipeBook) -> None:
    one, other = begin(book), begin(book)
    for action in ("get 1 coal", "get 2 bamboo", "inventory"):
        one.act(action)
    for action in ("get 2 bamboo", "get 0 oak logs", "get 1 coal"):
        other.act(action)
    assert one.state_hash == other.state_hash
    other.act("get 1 coal")
    assert one.state_hash != other.state_hash


WORDS = st.from_regex(
    r"craft|get|inventory|using|stick|planks|oak|birch|logs|oak_planks|lever", fullmatch=True
)
NUMBERS = st.sampled_from(["0", "1", "2", "4", "00", "1000000000", ",", "\n", "minecraft:", "☕"])
ACTIONS = st.text() | st.lists(WORDS | NUMBERS, max_size=9).map(" ".join)


@given(st.lists(ACTIONS | st.integers(0, 20), max_size=20))
def test_no_action_raises(book: RecipeBook, actions: list[str | int]) -> None:
    """No action raises; integers choose an offered action, so that there are items to use."""
    game = begin(book)
    for action in actions:
        offered = game.actions
        if isinstance(action, int):
            action = offered[action % len(offered)]
        observation = game.act(action)
        assert isinstance(observation, str)
        assert not (game.failed and action in offered)
        assert all(count >= 0 for count in game.inventory.values())


@given(st.text(alphabet="9", min_size=1, max_size=6000))
def test_large_numbers(book: RecipeBook, digits: str) -> None:
    """Numbers beyond Python's limit of 4300 digits raise no error."""
    game = begin(book)
    for action in (f"get {digits} coal", f"craft {digits} stick using {digits} coal", "inventory"):
        game.act(action)
