"""The tasks of TextCraft: a goal, the commands that are shown, and the splits."""

import random
from dataclasses import dataclass

from env_wrappers.errors import DataError
from env_wrappers.textcraft.recipes import Recipe, RecipeBook, words

SPLITS = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""Places of a split's goals, modulo four, in a fixed random order of the goals of each depth."""
SPLIT_SEED = 0


@dataclass(frozen=True)
class Task:
    """A goal and the commands that are shown for it."""

    goal: str
    """Id of the item to craft."""
    listed: list[Recipe]

    @property
    def text(self) -> str:
        """The first observation, as in the original."""
        commands = "\n".join(recipe.command for recipe in self.listed)
        return f"Crafting commands:\n{commands}\n\nGoal: craft {words(self.goal)}."


def make_task(book: RecipeBook, goal: str, distractors: int) -> Task:
    """Return the task of a goal, always the same.

    The commands are all those that the goal may need, and up to `distractors` others that use one
    of their ingredients, in random order. (The original draws from such commands too, but with
    Python's hash order, so that its tasks differ between processes.)
    """
    needed = book.needed_for(goal)
    others = dict.fromkeys(
        use
        for recipe in needed
        for part in recipe.ingredients
        for use in book.uses_of(part.name)
        if use not in needed
    )
    rng = random.Random(goal)
    listed = needed + rng.sample(list(others), min(distractors, len(others)))
    rng.shuffle(listed)
    return Task(goal, listed)


def goals_of(book: RecipeBook, split: str, max_commands: int | None) -> list[str]:
    """Return the ids of a split's goals, sorted.

    Half of the goals of each depth are in "train", a quarter each in "dev" and "test". The limit
    does not move a goal to another split.

    Args:
        book: the recipes.
        split: one of `SPLITS`.
        max_commands: the largest number of commands that a goal may need.

    Raises:
        DataError: there is no such split, or it has no goals.
    """
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}: choose {', '.join(SPLITS)}")
    by_depth: dict[float, list[str]] = {}
    for goal in book.goals():
        by_depth.setdefault(book.depth(goal), []).append(goal)
    chosen: list[str] = []
    for goals in by_depth.values():
        random.Random(SPLIT_SEED).shuffle(goals)
        chosen += (goal for place, goal in enumerate(goals) if place % 4 in SPLITS[split])
    if max_commands is not None:
        chosen = [goal for goal in chosen if len(book.needed_for(goal)) <= max_commands]
    if not chosen:
        raise DataError(f"no goals in {split} with max_commands={max_commands}: raise it")
    return sorted(chosen)
