"""The engine of TextCraft: an inventory, and the observations that actions give."""

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator

from env_wrappers.textcraft.recipes import PREFIX, Ingredient, Recipe, RecipeBook, words

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]{1,9}) (.*)")
_COUNTED = re.compile(r"([0-9]{1,9}) (.*)")
_INVENTORY = "inventory"


class ActionError(Exception):
    """The action has no effect; the message is the observation."""


class CraftingGame:
    """State of an episode: the inventory, and whether the goal has been crafted.

    Observations equal the original's, except where the original can raise an exception: numbers of
    ten or more digits are not understood, and a recipe that uses an item twice needs both amounts.

    Attributes:
        inventory: number of each item, by id.
        won: whether the goal has been crafted.
        failed: whether the last action had no effect.
    """

    def __init__(self, book: RecipeBook, goal: str, listed: list[Recipe]) -> None:
        """Start with an empty inventory.

        Args:
            book: all recipes; also those that are not listed can be used.
            goal: id of the item to craft.
            listed: recipes from which `actions` are made.
        """
        self.inventory: dict[str, int] = {}
        self.won = self.failed = False
        self._book = book
        self._goal = goal
        self._listed = listed
        amounts = dict.fromkeys(
            f"get {part.count} {words(part.name)}"
            for recipe in listed
            for part in recipe.ingredients
            if book.is_base(part.name)
        )
        self._always = [*amounts, _INVENTORY]

    def copy(self) -> "CraftingGame":
        """Return a game in the same state; actions in one do not change the other."""
        other = copy.copy(self)
        other.inventory = dict(self.inventory)
        return other

    @property
    def actions(self) -> list[str]:
        """Crafting actions that are possible now, ``get`` for listed base items, ``inventory``."""
        return [*dict.fromkeys(self._crafts()), *self._always]  # two recipes can be the same action

    @property
    def state_hash(self) -> str:
        """Hash of the items held, regardless of their order."""
        held = sorted((item, count) for item, count in self.inventory.items() if count)
        return hashlib.blake2b(repr(held).encode(), digest_size=8).hexdigest()

    def act(self, action: str) -> str:
        """Take an action; return the observation."""
        self.failed = False
        try:
            # As in the original, text after a command of one word or on further lines is ignored.
            if match := _CRAFT.match(action):
                return self._craft(*match.groups())
            if match := _GET.match(action):
                return self._get(int(match[1]), match[2])
            if action.startswith(_INVENTORY):
                return self._show()
            raise ActionError(f"Could not execute {action}")
        except ActionError as error:
            self.failed = True
            return str(error)

    def _get(self, count: int, text: str) -> str:
        item = _id(text)
        if not self._book.is_base(item):
            raise ActionError(f"Could not find {text}")
        self.inventory[item] = self.inventory.get(item, 0) + count
        return f"Got {count} {text}"

    def _show(self) -> str:
        if not self.inventory:
            return "Inventory: You are not carrying anything."
        held = "".join(f"[{words(item)}] ({n}) " for item, n in self.inventory.items())
        return f"Inventory: {held}"

    def _craft(self, output: str, inputs: str) -> str:
        match = _COUNTED.match(output)
        wanted, item = (int(match[1]), _id(match[2])) if match else (1, _id(output))
        used = [_counted(text.strip()) for text in inputs.split(",")]
        is_group = item in self._book.groups
        if not all(self.inventory.get(name, -1) >= count for name, count in used):
            raise ActionError(f"Could not find enough items to craft {None if is_group else item}")
        recipes = [] if is_group else self._book.recipes_of(item)
        fitting = (r for r in recipes if r.item == item and _fits(r.ingredients, used))
        recipe = next(fitting, None)
        if recipe is None:
            name = f"tag={item!r}, item_id=None" if is_group else f"tag=None, item_id={item!r}"
            tag = f"ItemTagWithCount(item_tag=ItemTag({name}), count={wanted})"
            raise ActionError(f"Could not find a valid recipe for {tag}")
        total = _total(used)
        if not self._has(total):
            raise ActionError(f"Could not find enough items to craft {item}")
        for name, count in total.items():
            self.inventory[name] -= count
            if not self.inventory[name]:
                del self.inventory[name]
        self.inventory[item] = self.inventory.get(item, 0) + recipe.count
        self.won = item == self._goal
        return f"Crafted {recipe.count} {item}"

    def _has(self, total: dict[str, int]) -> bool:
        return all(self.inventory.get(name, 0) >= count for name, count in total.items())

    def _crafts(self) -> Iterator[str]:
        inventory = self.inventory
        for recipe in self._listed:
            options: list[list[str]] = []
            for part in recipe.ingredients:
                held = [i for i, n in inventory.items() if n >= part.count and i in part.items]
                if not held:
                    break
                options.append(held)
            else:
                for items in itertools.product(*options):
                    if self._has(_total(recipe.used(items))):  # two can be the same item
                        yield recipe.action(items)


def _fits(ingredients: tuple[Ingredient, ...], used: list[tuple[str, int]]) -> bool:
    """Return whether each ingredient is used once, in its number, and nothing else is."""
    left = list(used)
    for part in ingredients:
        match = next((pair for pair in left if pair[0] in part.items), None)
        if match is None or match[1] != part.count:
            return False
        left.remove(match)
    return not left


def _total(used: list[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, count in used:
        total[name] = total.get(name, 0) + count
    return total


def _counted(text: str) -> tuple[str, int]:
    match = _COUNTED.match(text)
    if match is None:
        raise ActionError(f"Wrong item format: {text}")
    return _id(match[2]), int(match[1])


def _id(text: str) -> str:
    return PREFIX + text.replace(" ", "_")
