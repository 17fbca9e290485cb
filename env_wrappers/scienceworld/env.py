"""The Gymnasium environment of ScienceWorld."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError, check_known
from env_wrappers.scienceworld.simulator import SPLITS, Game, jar_hash, variations
from env_wrappers.text_env import TextEnv

MAX_ACTION = 1_000  # characters
SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
)
_NOT_UNDERSTOOD = ("No known action", "Unknown action")


class ScienceWorldEnv(TextEnv):
    """Science experiments in text: ``open door to kitchen``, ``focus on water``.

    See ``TextEnv``. Games are variations of tasks. Their order takes the first variation of every
    task, then the second of every task, and so on.

    A task score of 1 wins, and terminates the episode. A mistake that makes the task impossible,
    such as focusing on the wrong object, terminates too.

    ``info`` also contains task_score, from 0 to 1. Its admissible_actions are actions with objects
    that the simulator calls possible, often hundreds, and numbers after an ambiguous action;
    task_type is such as "boil", game "boil/3"; state_hash is of what the agent sees and holds, and
    of the score; inadmissible means that the last action was not understood.

    Attributes:
        games: task and variation of each game.
        data_hash: SHA-256 of the simulator's file.
    """

    _task_option = "game"
    _task_values = "an index into the split"

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        tasks: list[str] | None = None,
        max_variations: int | None = None,
        simplifications: str = "easy",
        max_steps: int = 100,
        success_reward: float = 10.0,
        render_mode: str | None = None,
    ) -> None:
        """Select the games; starts the simulator if this process has not asked for them before.

        Args:
            data: None; the package has all data.
            split: "train", "dev" or "test": variations as the simulator splits them.
            tasks: names of tasks; None: all 30.
            max_variations: use only the first variations of a task's split; None: all.
            simplifications: names of `SIMPLIFICATIONS`, separated by commas; "": none.
            max_steps, success_reward, render_mode: see ``TextEnv``.

        Raises:
            DataError: a package is missing, or an argument is unknown or out of range.
        """
        super().__init__(max_steps, success_reward, render_mode)
        if data is not None:
            raise DataError("ScienceWorld's data come with its package: leave env.data out")
        check_known("split", split, SPLITS)
        if max_variations is not None and max_variations < 1:
            raise DataError(f"max_variations must be at least 1, not {max_variations}")
        names = simplifications.split(",") if simplifications else []
        for name in names:
            check_known("simplification", name, SIMPLIFICATIONS)
        if "easy" in names and len(names) > 1:
            raise DataError("the simplification 'easy' goes with no other: remove the others")
        found = variations(split)
        for name in tasks or ():
            check_known("task", name, found)
        chosen = list(found if tasks is None else dict.fromkeys(tasks))
        if not chosen:
            raise DataError("tasks is empty: name a task, or leave it out for all")
        by_task = ([(name, number) for number in found[name][:max_variations]] for name in chosen)
        rounds = itertools.zip_longest(*by_task)
        chosen_games = filter(None, itertools.chain.from_iterable(rounds))
        self.games: list[tuple[str, int]] = list(chosen_games)
        self.num_tasks = len(self.games)
        self.data_hash = jar_hash()
        self._split = split
        self._simplifications = simplifications
        self._actions: list[str] = []  # taken in this episode, to replay it
        self._game: Game | None = None

    @property
    def task_types(self) -> list[str]:
        """The name of each task."""
        return [name for name, _ in self.games]

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        self._game = None
        self._played = self.games[self._choose(seed, task)]
        self._actions = ["look around"]
        game = self._current()
        name, variation = self._played
        return self._observation, {
            "goal": game.description(),
            "task_type": name,
            "game": f"{name}/{variation}",
        }

    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        action = action.encode(errors="replace").decode() if len(action) <= MAX_ACTION else ""
        game = self._current()
        self._observation = game.step(action)
        self._actions.append(action)
        reward = self._success_reward * self._won(game)
        inadmissible = self._observation.startswith(_NOT_UNDERSTOOD)
        return self._observation, reward, game.completed or game.score < 0, inadmissible

    def _info(self) -> dict[str, Any]:
        game = self._current()
        state = f"{game.look()}\n{game.score}"
        return {
            "admissible_actions": game.actions(),
            "won": self._won(game),
            "task_score": max(0.0, game.score),
            "state_hash": hashlib.sha256(state.encode()).hexdigest()[:16],
        }

    def close(self) -> None:
        """See ``TextEnv``; with the last game of a process, its simulator ends."""
        if self._game is not None:
            self._game.close()
            self._game = None
        super().close()

    def _won(self, game: Game) -> bool:
        return game.completed and game.score >= 1

    def _current(self) -> Game:
        """Return the game; replay it if this is a copy, or the simulator has ended."""
        if self._game is None or not self._game.is_usable():
            self._game = Game(*self._played, self._simplifications)
            for action in self._actions:
                self._observation = self._game.step(action)
        return self._game

    def _settings(self) -> dict[str, Any]:
        mine = {"data": self.data_hash, "simplifications": self._simplifications}
        return super()._settings() | mine

    def _save(self) -> Any:
        return self._played, tuple(self._actions)

    def _load(self, episode: Any) -> None:
        self._game = None
        self._played, actions = episode
        self._actions = list(actions)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the game, which the copy replays."""
        return self.__dict__ | {"_game": None, "_actions": list(self._actions)}
