"""The Gymnasium environment of TextCraft."""

import random
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError, check_known
from env_wrappers.text_env import TextEnv
from env_wrappers.textcraft.game import CraftingGame
from env_wrappers.textcraft.recipes import PREFIX, Recipe, RecipeBook, open_book, words

MAX_ACTION = 16_384  # characters
SPLITS = {"train": (0, 1), "dev": (2,), "test": (3,)}
"""Places of a split's goals, modulo four, in a fixed random order of the goals of each depth."""
SPLIT_SEED = 0


class TextCraftEnv(TextEnv):
    """Crafting in text: ``get 1 oak logs``, ``craft 4 oak planks using 1 oak logs``, ``inventory``.

    See ``TextEnv``; ``reset(options={"goal": i})`` plays goal ``i`` of the split. Crafting the goal
    terminates the episode. An action that is not understood or not possible changes nothing, as
    does an action of more than ``MAX_ACTION`` characters.

    In ``info``, admissible_actions are the listed crafting commands that are possible now, ``get``
    for base items in the amounts that listed commands name, and ``inventory``; task_type is
    "depth 2" to "depth 4" (recipes that must follow each other); game is the item to craft, such as
    "oak_sign"; goal is the text of the first observation (commands and goal, because an agent needs
    the commands in every step).

    Attributes:
        goals: ids of the items to craft.
    """

    _task_option = "goal"
    _task_values = "an index into the split"

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        distractors: int = 10,
        max_commands: int | None = None,
        max_steps: int = 50,
        success_reward: float = 10.0,
        render_mode: str | None = None,
    ) -> None:
        """Read the recipes and select the goals.

        Args:
            data: see ``recipes.open_book``.
            split: see ``goals_of``, also for ``max_commands``.
            distractors: largest number of listed commands that the goal does not need.
            max_steps, success_reward, render_mode: see ``TextEnv``.

        Raises:
            DataError: the data is unusable, or an argument is unknown or out of range.
        """
        super().__init__(max_steps, success_reward, render_mode)
        if distractors < 0:
            raise DataError(f"distractors must be at least 0, not {distractors}")
        self._book = open_book(data)
        self.goals = goals_of(self._book, split, max_commands)
        self.num_tasks = len(self.goals)
        self.data_hash = self._book.data_hash
        self._split = split
        self._distractors = distractors

    @property
    def task_types(self) -> list[str]:
        """The depth of each goal."""
        return [self._task_type(goal) for goal in self.goals]

    def _task_type(self, goal: str) -> str:
        return f"depth {self._book.depth(goal):.0f}"

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        goal = self.goals[self._choose(seed, task)]
        listed = listed_recipes(self._book, goal, self._distractors)
        self._game = CraftingGame(self._book, goal, listed)
        commands = "\n".join(recipe.command for recipe in listed)
        text = f"Crafting commands:\n{commands}\n\nGoal: craft {words(goal)}."
        return text, {
            "goal": text,
            "task_type": self._task_type(goal),
            "game": goal.removeprefix(PREFIX),
        }

    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        observation = self._game.act(action if len(action) <= MAX_ACTION else "")
        won = self._game.won
        return observation, self._success_reward * won, won, self._game.failed

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"data": self.data_hash, "distractors": self._distractors}

    def _save(self) -> Any:
        return self._game.copy()

    def _load(self, episode: Any) -> None:
        self._game = episode.copy()

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_actions": self._game.actions,
            "won": self._game.won,
            "state_hash": self._game.state_hash,
        }


def listed_recipes(book: RecipeBook, goal: str, distractors: int) -> list[Recipe]:
    """Return the recipes whose commands are shown for a goal, always the same.

    These are all that the goal may need, and up to `distractors` others that use one of their
    ingredients, in random order. (The original draws from such commands too, but with
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
    return listed


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
    check_known("split", split, SPLITS)
    by_depth: dict[float, list[str]] = {}
    for goal in book.goals():
        by_depth.setdefault(book.depth(goal), []).append(goal)
    chosen: list[str] = []
    for goals in by_depth.values():
        random.Random(SPLIT_SEED).shuffle(goals)
        chosen += (goal for place, goal in enumerate(goals) if place % 4 in SPLITS[split])
    if not chosen:
        raise DataError(f"no goals in {split}: take another split, or more recipes")
    if max_commands is not None:
        chosen = [goal for goal in chosen if len(book.needed_for(goal)) <= max_commands]
    if not chosen:
        raise DataError(f"no goals in {split} with max_commands={max_commands}: raise it")
    return sorted(chosen)
