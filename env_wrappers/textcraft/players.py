"""Plans with the fewest actions, and scripted players.

A plan is which recipes to use, how often, and what to get for them.
"""

import functools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from env_wrappers.errors import DataError
from env_wrappers.textcraft.game import CraftingGame
from env_wrappers.textcraft.recipes import Recipe, RecipeBook, words


@dataclass(frozen=True, eq=False)
class Choice:
    """Which recipe or item to use where there are alternatives.

    Attributes:
        recipes: recipe by item.
        members: the item that is used for a group.
    """

    recipes: Mapping[str, Recipe]
    members: Mapping[str, str]

    def item(self, name: str) -> str:
        """Return the item that is used for an ingredient."""
        return self.members.get(name, name)


@functools.lru_cache(maxsize=1024)
def find_choice(book: RecipeBook, goal: str) -> Choice:
    """Return the choice of a shortest plan; see `plan`.

    Raises:
        DataError: the goal cannot be crafted.
    """
    choices = _choices(book, (goal,), Choice({}, {}))
    lengths = {choice: len(plan(goal, choice)) for choice in choices}
    possible = [choice for choice, length in lengths.items() if length]
    if not possible or goal not in possible[0].recipes:
        raise DataError(f"{words(goal)} cannot be crafted: choose another goal")
    return min(possible, key=lengths.__getitem__)


def plan(goal: str, choice: Choice) -> list[str]:
    """Return the actions that craft the goal by a choice; empty if an item would need itself.

    Every base item is got once, in the amount that all recipes need together.
    """
    actions: list[str] = []
    for item, needed in reversed(_demands(goal, choice).items()):
        recipe = choice.recipes.get(item)
        if recipe is None:
            actions.append(f"get {needed} {words(item)}")
        else:
            action = recipe.action([choice.item(part.name) for part in recipe.ingredients])
            actions += [action] * math.ceil(needed / recipe.count)
    return actions


def _choices(book: RecipeBook, names: tuple[str, ...], choice: Choice) -> Iterator[Choice]:
    """Yield all ways to complete a choice so that it covers `names` and their ingredients."""
    if not names:
        yield choice
        return
    name, *rest = names
    if name in choice.recipes or name in choice.members or not book.recipes_of(name):
        yield from _choices(book, tuple(rest), choice)
    elif name in book.groups:
        for item in dict.fromkeys(recipe.item for recipe in book.recipes_of(name)):
            with_item = Choice(choice.recipes, {**choice.members, name: item})
            yield from _choices(book, (item, *rest), with_item)
    else:
        for recipe in book.recipes_of(name):
            with_recipe = Choice({**choice.recipes, name: recipe}, choice.members)
            parts = (part.name for part in recipe.ingredients)
            yield from _choices(book, (*parts, *rest), with_recipe)


def _demands(goal: str, choice: Choice) -> dict[str, int]:
    """Return the number of each item that is needed, every item before its ingredients.

    Empty if an item would need itself.
    """
    order: dict[str, None] = {}  # every item after its ingredients
    path: list[str] = []

    def visit(item: str) -> bool:
        if item in path:
            return False
        if item not in order:
            path.append(item)
            recipe = choice.recipes.get(item)
            parts = recipe.ingredients if recipe else ()
            if not all(visit(choice.item(part.name)) for part in parts):
                return False
            path.pop()
            order[item] = None
        return True

    if not visit(goal):
        return {}
    needed = Counter({goal: 1})
    for item in reversed(order):
        if recipe := choice.recipes.get(item):
            times = math.ceil(needed[item] / recipe.count)
            for part in recipe.ingredients:
                needed[choice.item(part.name)] += times * part.count
    return {item: needed[item] for item in reversed(order)}


class Crafter:
    """Craft the goal: execute a recipe if its ingredients are there, otherwise obtain one of them.

    It uses the recipes of a shortest plan, and gets items in the amounts that recipes name.
    """

    def __init__(
        self,
        book: RecipeBook,
        goal: str,
        rng: random.Random,
        random_gets: float = 0.0,
    ) -> None:
        """Initialize for a goal.

        With probability `random_gets`, the crafter gets any listed item instead of acting as above.
        """
        self._rng = rng
        self._random_gets = random_gets
        self._goal = goal
        self._choice = find_choice(book, goal)
        self._game = CraftingGame(book, goal, [])  # follows the episode

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action. The thought leads from the goal to what is missing."""
        if last is not None:
            self._game.act(last)
        thought, action = self._next()
        gets = [other for other in admissible if other.startswith("get ")]
        if gets and self._rng.random() < self._random_gets:
            action = self._rng.choice(gets)
        return thought, action

    def perturb(self, admissible: Sequence[str], rng: random.Random) -> str:
        """Return any admissible action that does not win."""
        final = f" {words(self._goal)} using "
        return rng.choice([action for action in admissible if final not in action])

    def is_worth_learning(self, info: Mapping[str, Any]) -> bool:
        """Return whether the goal was crafted."""
        return bool(info["won"])

    def _next(self) -> tuple[str, str]:
        thought = words(self._goal)
        recipe = self._choice.recipes[self._goal]
        while True:
            inventory = self._game.inventory
            held = [
                [item for item in part.items if inventory.get(item, 0) >= part.count]
                for part in recipe.ingredients
            ]
            if all(held):
                return thought, recipe.action([min(items) for items in held])
            missing = recipe.ingredients[held.index([])]
            item = self._choice.item(missing.name)
            thought += f": {missing.count} {words(missing.name)}"
            if item not in self._choice.recipes:
                return thought, f"get {missing.count} {words(item)}"
            recipe = self._choice.recipes[item]
