"""Scripted players, and the one whose demonstrations a small model imitates."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from env_wrappers.textcraft.planner import find_choice
from env_wrappers.textcraft.recipes import RecipeBook, words
from env_wrappers.textcraft.workshop import Workshop


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
        self._workshop = Workshop(book, goal, [])  # follows the episode

    def act(self, observation: str, admissible: Sequence[str], last: str | None) -> tuple[str, str]:
        """Return thought and action. The thought leads from the goal to what is missing."""
        if last is not None:
            self._workshop.act(last)
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
            items: list[str] = []
            missing = None
            for part in recipe.ingredients:
                held = [i for i in part.items if self._workshop.inventory.get(i, 0) >= part.count]
                if not held:
                    missing = part
                    break
                items.append(min(held))
            if missing is None:
                return thought, recipe.action(items)
            item = self._choice.item(missing.name)
            thought += f": {missing.count} {words(missing.name)}"
            if item not in self._choice.recipes:
                return thought, f"get {missing.count} {words(item)}"
            recipe = self._choice.recipes[item]
