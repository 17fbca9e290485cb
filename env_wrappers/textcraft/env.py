"""The Gymnasium environment of TextCraft."""

from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError
from env_wrappers.text_env import TextEnv
from env_wrappers.textcraft.recipes import PREFIX, open_book
from env_wrappers.textcraft.tasks import goals_of, make_task
from env_wrappers.textcraft.workshop import Workshop

MAX_ACTION = 16_384  # characters


class TextCraftEnv(TextEnv):
    """Crafting in text: ``get 1 oak logs``, ``craft 4 oak planks using 1 oak logs``, ``inventory``.

    ``reset(seed=s)`` plays the goal ``s % num_tasks`` of the split, so all environments with the
    same arguments play the same task for the same seed. ``reset(options={"goal": i})`` plays goal
    ``i`` of the split. ``reset()`` draws a goal from ``np_random``.

    Crafting the goal terminates the episode; after ``max_steps`` steps it is truncated. Any string
    is a valid action: one that is not understood or not possible changes nothing, as does an action
    of more than ``MAX_ACTION`` characters.

    ``info`` contains admissible_actions (list of str: the listed crafting commands that are
    possible now, ``get`` for base items in the amounts that listed commands name, and
    ``inventory``), won (bool), task_type ("depth 2" to "depth 4": recipes that must follow each
    other), game (the item to craft, such as "oak_sign"), goal (the text of the first observation:
    commands and goal, because an agent needs the commands in every step), state_hash (see
    ``Workshop``), inadmissible (bool: the last action had no effect) and inadmissible_count (number
    of such actions in this episode).

    Attributes:
        goals: ids of the items to craft.
        num_tasks: number of goals in the split.
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
            split: see ``tasks.goals_of``, also for ``max_commands``.
            distractors: largest number of listed commands that the goal does not need.
            max_steps: steps after which an episode is truncated.
            success_reward: reward for crafting the goal; other steps earn 0.
            render_mode: "ansi" or None; see ``TextEnv``.

        Raises:
            DataError: the data is unusable, or an argument is unknown or out of range.
        """
        super().__init__(max_steps, render_mode)
        if distractors < 0:
            raise DataError(f"distractors must be at least 0, not {distractors}")
        self._book = open_book(data)
        self.goals = goals_of(self._book, split, max_commands)
        self.num_tasks = len(self.goals)
        self.data_hash = self._book.data_hash
        self._tasks = f" in {split}"
        self._distractors = distractors
        self._success_reward = float(success_reward)

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        goal = self.goals[self._choose(seed, task)]
        made = make_task(self._book, goal, self._distractors)
        self._workshop = Workshop(self._book, goal, made.listed)
        self._constant = {
            "goal": made.text,
            "task_type": f"depth {self._book.depth(goal):.0f}",
            "game": goal.removeprefix(PREFIX),
        }
        self._inadmissible = 0
        return made.text, self._info()

    def _act(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation = self._workshop.act(action if len(action) <= MAX_ACTION else "")
        self._inadmissible += self._workshop.failed
        won = self._workshop.won
        return observation, self._success_reward * won, won, self._info()

    def _settings(self) -> dict[str, Any]:
        return {
            "environment": type(self),
            "data": self.data_hash,
            "distractors": self._distractors,
            "max_steps": self._max_steps,
            "success_reward": self._success_reward,
        }

    def _save(self) -> Any:
        return self._workshop.copy(), self._constant, self._inadmissible

    def _load(self, episode: Any) -> None:
        workshop, self._constant, self._inadmissible = episode
        self._workshop = workshop.copy()

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_actions": self._workshop.actions,
            "won": self._workshop.won,
            **self._constant,
            "state_hash": self._workshop.state_hash,
            "inadmissible": self._workshop.failed,
            "inadmissible_count": self._inadmissible,
        }
