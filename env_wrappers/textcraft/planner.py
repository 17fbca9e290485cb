"""Plans with the fewest actions: which recipes to use, how often, and what to get for them."""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from env_wrappers.errors import DataError
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
