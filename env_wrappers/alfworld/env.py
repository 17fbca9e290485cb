"""The Gymnasium environment of ALFWorld."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_wrappers.alfworld.engine import GameEngine, State, get_engine
from env_wrappers.alfworld.games import is_solvable, shared_games, task_type_of
from env_wrappers.errors import DataError
from env_wrappers.text_env import TextEnv

_TASK_MARK = "Your task is to: "


class ALFWorldEnv(TextEnv):
    """Household tasks in text: an action is one command, an observation is the engine's answer.

    See ``TextEnv``. ``reset(options={"game": g})`` plays the game ``g``, an index into ``games`` or
    the path of any solvable game. Surrounding blanks of actions are dropped, and the engine answers
    "Nothing happens." to commands that it does not understand. In ``info``, game is a path,
    state_hash is that of ``engine.State``, and inadmissible means that the last action was not
    among the admissible ones.

    Attributes:
        games: paths of the games, sorted.
    """

    _task_option = "game"
    _task_values = "an index or the path of a file"

    def __init__(
        self,
        data: str | Path | None = None,
        split: str = "train",
        task_types: Sequence[str] | None = None,
        max_steps: int = 50,
        success_reward: float = 10.0,
        render_mode: str | None = None,
        trusted: bool = False,
    ) -> None:
        """Find the games; see ``games.shared_games`` for ``data``, ``split`` and ``task_types``.

        Args:
            trusted: whether code in the grammar of a game may run; otherwise, a game whose grammar
                or PDDL domain is not ALFWorld's is refused.

        Raises:
            DataError: the data does not exist, ``max_steps`` is not positive, the render mode is
                unknown, or ``trusted`` is not a bool.
        """
        if not isinstance(trusted, bool):
            raise DataError(f"trusted must be true or false, not {trusted!r}")
        super().__init__(max_steps, success_reward, render_mode)
        self.games: list[str] = shared_games(data, split, task_types)
        self.num_tasks = len(self.games)
        self._split = split
        self._trusted = trusted
        self._engine: GameEngine | None = None
        self._state: State | None = None

    @property
    def task_types(self) -> list[str]:
        """The type of each task."""
        return [task_type_of(Path(game)) for game in self.games]

    def close(self) -> None:
        """End the episode, and release the engine for other games."""
        super().close()
        self._engine = self._state = None

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        self._engine = self._state = None  # release the engine
        if isinstance(task, (str, Path)):
            self._game = str(task)
            if self._game not in self.games and not is_solvable(Path(task)):
                raise DataError(f"{task} is not marked solvable: choose another game")
        else:
            self._game = self.games[self._choose(seed, task)]
        self._engine = get_engine(self._game, self._trusted)
        self._state, observation = self._engine.reset()
        self._taken: tuple[str, ...] = ()
        return observation, {
            "task_type": task_type_of(Path(self._game)),
            "game": self._game,
            "goal": observation.rpartition(_TASK_MARK)[2].strip(),
        }

    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        assert self._engine is not None, "an episode is running"
        before = self._state
        assert before is not None
        try:
            self._state, observation = self._engine.step(before, action)
        except DataError as error:
            raise DataError(f"{self._game} {error}") from error
        if self._state is not before:
            self._taken += (action,)
        won = self._state.won
        inadmissible = action.strip() not in before.admissible
        return observation, self._success_reward * won, won, inadmissible

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"trusted": self._trusted}

    def _save(self) -> Any:
        # The engine is part of it: a state is valid while its engine exists.
        return self._engine, self._state, self._game, self._taken

    def _load(self, episode: Any) -> None:
        self._engine, self._state, self._game, self._taken = episode

    def _info(self) -> dict[str, Any]:
        assert self._state is not None
        return {
            "admissible_actions": list(self._state.admissible),
            "won": self._state.won,
            "state_hash": self._state.state_hash,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the engine and its state, which cannot be pickled."""
        state_hash = self._state.state_hash if self._running and self._state else None
        return self.__dict__ | {"_engine": None, "_state": state_hash}

    def __setstate__(self, values: dict[str, Any]) -> None:
        """Restore the state by replaying the episode's actions on a new engine.

        Raises:
            DataError: the game cannot be loaded any more, or has changed.
        """
        state_hash = values["_state"]
        self.__dict__ |= values | {"_state": None}
        if state_hash is None:
            return
        self._engine = get_engine(self._game, self._trusted)
        self._state, _ = self._engine.reset()
        for action in self._taken:
            self._state, _ = self._engine.step(self._state, action)
        if self._state.state_hash != state_hash:
            raise DataError(f"{self._game} has changed since the episode began: start another one")
