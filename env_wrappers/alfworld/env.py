"""The Gymnasium environment of ALFWorld."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from env_wrappers.alfworld.engine import GameEngine, State, get_engine
from env_wrappers.alfworld.games import DataError, find_games, task_type_of
from env_wrappers.spaces import AnyText

_TASK_MARK = "Your task is to: "
_MAX_OBSERVATION = 16_384  # characters; a crowded room takes about 2,000
_MAX_ACTION = 16_384


class ALFWorldEnv(gymnasium.Env[str, str]):
    """A household task in text: an action is one command, an observation the answer to it.

    ``reset(seed=s)`` plays the game ``games[s % num_tasks]``: a seed is an index into the sorted
    list, so that every environment with the same data plays the same game for the same seed.
    ``reset(options={"game": g})`` plays the game ``g``, an index or the path of any game file.
    ``reset()`` draws a game from ``np_random``.

    The reward is ``success_reward`` at the step that reaches the goal, which terminates the
    episode, and 0 otherwise; after ``max_steps`` steps the episode is truncated. Any string is a
    safe action: surrounding blanks are dropped, and the engine answers "Nothing happens." to what
    it does not understand.

    ``info`` holds admissible_actions (list of str), won (bool), task_type, game (path), goal (the
    task's words), state_hash (see ``engine.State``) and inadmissible (bool: the action just taken
    was not among the admissible ones).

    Attributes:
        games: paths of the games, sorted.
        num_tasks: how many there are.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(
        self,
        data: str | Path,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = 50,
        success_reward: float = 10.0,
    ) -> None:
        """Find the games; see ``games.find_games`` for ``data``, ``split`` and ``task_types``.

        Raises:
            DataError: there is no such data, or ``max_steps`` is not positive.
        """
        if max_steps < 1:
            raise DataError(f"max_steps must be at least 1, not {max_steps}")
        self.games: list[str] = [str(game) for game in find_games(data, split, task_types)]
        self.num_tasks = len(self.games)
        self.observation_space = AnyText(_MAX_OBSERVATION)
        self.action_space = AnyText(_MAX_ACTION)
        self._max_steps = max_steps
        self._success_reward = float(success_reward)
        self._engine: GameEngine | None = None
        self._state: State | None = None  # None: no episode is running

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode and return its introduction, which ends with the task.

        Raises:
            DataError: the game cannot be loaded, or ``options`` asks for one that is not there.
        """
        super().reset(seed=seed)
        self._state = None
        self._game = self._choose(seed, (options or {}).get("game"))
        self._engine = get_engine(self._game)
        self._state, observation = self._engine.reset()
        self._goal = observation.rpartition(_TASK_MARK)[2].strip()
        self._task_type = task_type_of(Path(self._game))
        self._steps = 0
        return observation, self._info(self._state, inadmissible=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            TypeError: the action is not a string.
        """
        if self._state is None or self._engine is None:
            raise ResetNeeded("no episode is running: call reset() first (or again, after its end)")
        if not isinstance(action, str):
            raise TypeError(f"an action is a string, not {type(action).__name__}")
        inadmissible = action.strip() not in self._state.admissible
        state, observation = self._engine.step(self._state, action)
        self._steps += 1
        truncated = self._steps >= self._max_steps and not state.won
        reward = self._success_reward if state.won else 0.0
        self._state = None if state.won or truncated else state
        return observation, reward, state.won, truncated, self._info(state, inadmissible)

    def close(self) -> None:
        """End the episode, and let the game's engine be used for another game."""
        self._state = self._engine = None

    def _choose(self, seed: int | None, game: int | str | Path | None) -> str:
        if isinstance(game, (str, Path)):
            return str(game)
        if game is not None:
            if not 0 <= game < self.num_tasks:
                raise DataError(f"no game {game}: there are {self.num_tasks} (0 is the first)")
            return self.games[game]
        index = int(self.np_random.integers(self.num_tasks)) if seed is None else seed
        return self.games[index % self.num_tasks]

    def _info(self, state: State, inadmissible: bool) -> dict[str, Any]:
        return {
            "admissible_actions": list(state.admissible),
            "won": state.won,
            "task_type": self._task_type,
            "game": self._game,
            "goal": self._goal,
            "state_hash": state.state_hash,
            "inadmissible": inadmissible,
        }
