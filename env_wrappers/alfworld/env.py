"""The Gymnasium environment of ALFWorld."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from env_wrappers.alfworld.engine import GameEngine, State, get_engine
from env_wrappers.alfworld.games import choose_game, find_games, task_type_of
from env_wrappers.errors import DataError
from env_wrappers.spaces import AnyText

_TASK_MARK = "Your task is to: "
MAX_OBSERVATION = 16_384  # characters; a crowded room takes about 2,000
MAX_ACTION = 16_384


class Episode:
    """One player's episode after another; what an environment and a vector of them share."""

    def __init__(self, max_steps: int, success_reward: float) -> None:
        """Take the rules.

        Raises:
            DataError: ``max_steps`` is not positive.
        """
        if max_steps < 1:
            raise DataError(f"max_steps must be at least 1, not {max_steps}")
        self._max_steps = max_steps
        self._success_reward = float(success_reward)
        self._engine: GameEngine | None = None
        self._state: State | None = None  # None: no episode is running

    def reset(self, game: str) -> tuple[str, dict[str, Any]]:
        """Start an episode of a game file and return its introduction and info.

        Raises:
            DataError: the game cannot be loaded.
        """
        self._state = None
        self._engine = get_engine(game)
        self._state, observation = self._engine.reset()
        goal = observation.rpartition(_TASK_MARK)[2].strip()
        self._constant = {"task_type": task_type_of(Path(game)), "game": game, "goal": goal}
        self._steps = self._inadmissible = 0
        return observation, self._info(self._state, inadmissible=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command: observation, reward, terminated, truncated, info.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            TypeError: the action is not a string.
            DataError: the game's grammar has no words for what happens now.
        """
        if self._state is None or self._engine is None:
            raise ResetNeeded("no episode is running: call reset() first (or again, after its end)")
        if not isinstance(action, str):
            raise TypeError(f"an action is a string, not {type(action).__name__}")
        inadmissible = action.strip() not in self._state.admissible
        try:
            state, observation = self._engine.step(self._state, action)
        except Exception as error:  # a grammar that lacks a text: TextWorld only now looks for it
            self.end()
            raise DataError(
                f"{self._constant['game']} cannot answer {action[:80]!r}: "
                f"{type(error).__name__}: {error}; remove the file or fetch it again"
            ) from error
        self._steps += 1
        self._inadmissible += inadmissible
        truncated = self._steps >= self._max_steps and not state.won
        reward = self._success_reward if state.won else 0.0
        self._state = None if state.won or truncated else state
        return observation, reward, state.won, truncated, self._info(state, inadmissible)

    def end(self) -> None:
        """End the episode, and let the game's engine be used for another game."""
        self._state = self._engine = None

    def _info(self, state: State, inadmissible: bool) -> dict[str, Any]:
        return {
            "admissible_actions": list(state.admissible),
            "won": state.won,
            **self._constant,
            "state_hash": state.state_hash,
            "inadmissible": inadmissible,
            "inadmissible_count": self._inadmissible,
        }


class ALFWorldEnv(gymnasium.Env[str, str]):
    """A household task in text: an action is one command, an observation the answer to it.

    ``reset(seed=s)`` plays the game ``games[s % num_tasks]``: a seed is an index into the sorted
    list, so that every environment with the same data plays the same game for the same seed.
    ``reset(options={"game": g})`` plays the game ``g``, an index or the path of any solvable game.
    ``reset()`` draws a game from ``np_random``.

    The reward is ``success_reward`` at the step that reaches the goal, which terminates the
    episode, and 0 otherwise; after ``max_steps`` steps the episode is truncated. Any string is a
    safe action: surrounding blanks are dropped, and the engine answers "Nothing happens." to what
    it does not understand.

    ``info`` holds admissible_actions (list of str), won (bool), task_type, game (path), goal (the
    task's words), state_hash (see ``engine.State``), inadmissible (bool: the action just taken was
    not among the admissible ones) and inadmissible_count (such actions in this episode so far).

    Attributes:
        games: paths of the games, sorted.
        num_tasks: how many there are.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = 50,
        success_reward: float = 10.0,
    ) -> None:
        """Find the games; see ``games.find_games`` for ``data``, ``split`` and ``task_types``.

        Raises:
            DataError: there is no such data, or ``max_steps`` is not positive.
        """
        self._episode = Episode(max_steps, success_reward)
        self.games: list[str] = [str(game) for game in find_games(data, split, task_types)]
        self.num_tasks = len(self.games)
        self.observation_space = AnyText(MAX_OBSERVATION)
        self.action_space = AnyText(MAX_ACTION)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode and return its introduction, which ends with the task.

        Raises:
            DataError: the game cannot be loaded, or ``options`` asks for one that is not there.
        """
        super().reset(seed=seed)
        self._episode.end()
        game = (options or {}).get("game")
        return self._episode.reset(choose_game(self.games, self.np_random, seed, game))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one command.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            TypeError: the action is not a string.
            DataError: the game's grammar has no words for what happens now.
        """
        return self._episode.step(action)

    def close(self) -> None:
        """End the episode, and let the game's engine be used for another game."""
        self._episode.end()
