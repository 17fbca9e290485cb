"""The rules of crafting, and that no action raises an error or makes an amount negative."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.textcraft.env import listed_recipes
from env_wrappers.textcraft.recipes import RecipeBook, open_book
from env_wrappers.textcraft.workshop import Workshop
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


def begin(book: RecipeBook, goal: str = GOAL) -> Workshop:
    return Workshop(book, goal, listed_recipes(book, goal, 3))


def test_an_episode(book: RecipeBook) -> None:
    shop = begin(book)
    for action, observation in (
        ("inventory", "Inventory: You are not carrying anything."),
        ("get 1 oak logs", "Got 1 oak logs"),
        ("craft 4 oak planks using 1 oak logs", "Crafted 4 minecraft:oak_planks"),
        ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        ("get 1 cobblestone", "Got 1 cobblestone"),
        ("inventory", "Inventory: [oak planks] (2) [stick] (4) [cobblestone] (1) "),
    ):
        assert shop.act(action) == observation
        assert not shop.failed
        assert not shop.won
    assert shop.act("craft 1 lever using 1 cobblestone, 1 stick") == "Crafted 1 minecraft:lever"
    assert shop.won
    assert shop.inventory == {"minecraft:oak_planks": 2, "minecraft:stick": 3, GOAL: 1}


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
    shop = begin(book)
    shop.act("get 2 oak logs")
    shop.act("get 1 coal")
    before = dict(shop.inventory), shop.state_hash
    assert shop.act(action) == observation
    assert shop.failed
    assert (dict(shop.inventory), shop.state_hash) == before
    shop.act("inventory")
    assert not shop.failed


def test_the_amount_before_the_item_does_not_count(book: RecipeBook) -> None:
    """As in the original, in which one execution gives what the recipe says."""
    shop = begin(book)
    shop.act("get 1 oak logs")
    assert shop.act("craft 99 oak planks using 1 oak logs") == "Crafted 4 minecraft:oak_planks"


def test_an_item_for_two_ingredients(book: RecipeBook) -> None:
    """In the original this raises an error, or leaves a negative amount."""
    shop = begin(book)
    shop.inventory = {"minecraft:oak_planks": 1}
    twice = "craft 1 pair using 1 oak planks, 1 oak planks"
    assert shop.act(twice) == "Could not find enough items to craft minecraft:pair"
    shop.inventory = {"minecraft:oak_planks": 2}
    assert shop.act(twice) == "Crafted 1 minecraft:pair"
    assert shop.inventory == {"minecraft:pair": 1}


def test_offered_actions(book: RecipeBook) -> None:
    shop = begin(book)
    gets = [f"get 1 {wood} logs" for wood in ("acacia", "birch", "oak", "spruce")]
    assert shop.actions[-1] == "inventory"
    assert set(shop.actions) == {*gets, "get 2 bamboo", "get 1 cobblestone", "inventory"}
    shop.inventory = {"minecraft:oak_planks": 2, "minecraft:birch_planks": 2}
    crafts = {action for action in shop.actions if action.startswith("craft")}
    assert {
        "craft 4 stick using 2 oak planks",
        "craft 4 stick using 2 birch planks",
    } <= crafts
    assert not any("1 lever" in action for action in crafts)


def test_offered_crafts_need_both_amounts(book: RecipeBook) -> None:
    shop = Workshop(book, GOAL, book.recipes_of("minecraft:pair"))
    shop.inventory = {"minecraft:oak_planks": 1}
    assert shop.actions == ["inventory"]
    shop.inventory["minecraft:birch_planks"] = 1
    assert shop.actions[0] == "craft 1 pair using 1 oak planks, 1 birch planks"


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
    """An integer is one of the offered actions, so that there are items to use."""
    shop = begin(book)
    for action in actions:
        offered = shop.actions
        if isinstance(action, int):
            action = offered[action % len(offered)]
        observation = shop.act(action)
        assert isinstance(observation, str)
        assert not (shop.failed and action in offered)
        assert all(count >= 0 for count in shop.inventory.values())


@given(st.text(alphabet="9", min_size=1, max_size=6000))
def test_large_numbers(book: RecipeBook, digits: str) -> None:
    """Python converts at most 4300 digits."""
    shop = begin(book)
    for action in (f"get {digits} coal", f"craft {digits} stick using {digits} coal", "inventory"):
        shop.act(action)
