"""Base class of the text environments: spaces, step limit, rendering and input checks."""

import abc
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from env_wrappers.errors import DataError
from env_wrappers.spaces import AnyText


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Snapshot:
    """State of an episode, see ``TextEnv.snapshot``; opaque, and valid in its process only."""

    _settings: Mapping[str, Any]
    _common: tuple[Any, ...]
    _episode: Any

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot is valid in its process only: pickle the environment instead")


class TextEnv(gymnasium.Env[str, str], abc.ABC):
    """Base class of the text environments.

    ``reset(seed=s)`` plays task ``s % num_tasks``, so all environments with the same arguments play
    the same task for the same seed. ``reset(options={"game": i})`` plays task ``i``; some
    environments call it "goal". ``reset()`` draws a task from ``np_random``.

    After ``max_steps`` steps an episode is truncated. Any string is a valid action.

    ``info`` contains admissible_actions (list of str), won (bool), task_type, game (name of the
    task), goal (the task in words), state_hash (equal in equal states), inadmissible (bool: the
    last action had no effect) and inadmissible_count (number of such actions in this episode).

    With ``render_mode="ansi"``, ``render()`` returns the last observation. Deep copies and pickles
    continue from the same state with the same results.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's convention)
    num_tasks: int
    """Number of tasks in the split."""
    _task_option: str
    """Key in ``reset(options=...)`` that selects the task."""
    _task_values: str
    """Its values, for error messages."""
    _split: str
    """Name of the split, for error messages."""

    def __init__(self, max_steps: int, success_reward: float, render_mode: str | None) -> None:
        """Set the attributes that all environments share.

        Args:
            max_steps: steps after which an episode is truncated.
            success_reward: reward of the step that reaches the goal. See the environment for
                the rewards of other steps.
            render_mode: "ansi" or None.

        Raises:
            DataError: ``max_steps`` is not positive, or the render mode is unknown.
        """
        if max_steps < 1:
            raise DataError(f"max_steps must be at least 1, not {max_steps}")
        if render_mode not in (None, "ansi"):
            raise DataError(f"unknown render_mode {render_mode!r}: choose 'ansi', or None")
        self.render_mode = render_mode
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._max_steps = max_steps
        self._success_reward = float(success_reward)
        self._steps = self._inadmissible_count = 0
        self._running = self._closed = False
        self._last_observation: str | None = None
        self._task_info: dict[str, Any] = {}  # what an episode does not change

    @abc.abstractmethod
    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        """Start the episode of the seed or task.

        Returns:
            The observation, and the info that the episode does not change.
        """

    @abc.abstractmethod
    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        """Take an action; return observation, reward, terminated and inadmissible."""

    @abc.abstractmethod
    def _info(self) -> dict[str, Any]:
        """Return the other info."""

    def _settings(self) -> dict[str, Any]:
        """Return, by name, what a snapshot requires to be equal in another environment."""
        return {
            "environment": type(self),
            "max_steps": self._max_steps,
            "success_reward": self._success_reward,
        }

    @abc.abstractmethod
    def _save(self) -> Any:
        """Return the state of the running episode, as values that no later step changes."""

    @abc.abstractmethod
    def _load(self, episode: Any) -> None:
        """Set the state of the episode to one that ``_save`` returned."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode and return its first observation.

        Raises:
            DataError: the task does not exist or cannot be loaded, or the seed or options are
                invalid. No episode is running afterwards.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
        """
        self._require_open()
        self._running, self._last_observation = False, None
        self._steps = self._inadmissible_count = 0
        # Gymnasium accepts a bool as an int and would play task 0 or 1.
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise DataError(f"reset: a seed is an integer from 0 on, or None, not {seed!r}")
        if options is not None and not isinstance(options, dict):
            raise DataError(f"reset: options is a dictionary, not {type(options).__name__}")
        unknown = (options or {}).keys() - {self._task_option}
        if unknown:
            raise DataError(
                f"reset: unknown option {min(unknown, key=str)!r}: "
                f"the only one is {self._task_option!r}"
            )
        super().reset(seed=seed)
        task = (options or {}).get(self._task_option)
        self._last_observation, self._task_info = self._begin(seed, task)
        self._running = True
        counted = {"inadmissible": False, "inadmissible_count": 0}
        return self._last_observation, {**self._info(), **self._task_info, **counted}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
            TypeError: the action is not a string.
            DataError: the task data cannot answer the action.
        """
        self._require_running()
        if not isinstance(action, str):
            raise TypeError(f"an action is a string, not {type(action).__name__}")
        self._running = False  # also after an error
        self._last_observation, reward, terminated, inadmissible = self._act(action)
        self._steps += 1
        self._inadmissible_count += inadmissible
        counted = {"inadmissible": inadmissible, "inadmissible_count": self._inadmissible_count}
        truncated = self._steps >= self._max_steps and not terminated
        info = {**self._info(), **self._task_info, **counted}
        self._running = not (terminated or truncated)
        return self._last_observation, reward, terminated, truncated, info

    def snapshot(self) -> Snapshot:
        """Return the state of the running episode, for ``restore``.

        It includes the number of steps taken, but not ``np_random``, which draws tasks in
        ``reset()``. It holds references to shared immutable data, so it is cheap to take and keep.

        Raises:
            gymnasium.error.ResetNeeded: no episode is running.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
        """
        self._require_running()
        common = self._steps, self._inadmissible_count, self._last_observation, self._task_info
        return Snapshot(self._settings(), common, self._save())

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot of this environment, or of another one in this process.

        The other environment must have the same data and settings. The same actions then give the
        same observations, rewards and infos. A snapshot can be restored any number of times.

        Raises:
            DataError: the snapshot is of an environment with other data or settings.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
        """
        self._require_open()
        if not isinstance(snapshot, Snapshot):
            raise DataError(f"restore: give a snapshot, not {type(snapshot).__name__}")
        for name, value in self._settings().items():
            if snapshot._settings.get(name) != value:
                raise DataError(
                    f"restore: the snapshot is of an environment with another {name}: make both "
                    "with the same arguments"
                )
        self._load(snapshot._episode)
        self._steps, self._inadmissible_count, *shown = snapshot._common
        self._last_observation, self._task_info = shown
        self._running = True

    def render(self) -> str | None:  # type: ignore[override]
        """Return the last observation in render mode "ansi", None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: there is no observation yet.
            gymnasium.error.ClosedEnvironmentError: the environment is closed.
        """
        self._require_open()
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing: make the env with render_mode="ansi"')
            return None
        if self._last_observation is None:
            raise ResetNeeded("there is nothing to render yet: call reset() first")
        return self._last_observation

    def close(self) -> None:
        """End the episode; a closed environment cannot be used again."""
        self._running, self._closed, self._last_observation = False, True, None

    def _choose(self, seed: int | None, task: Any) -> int:
        """Return the index of the task: ``task``, one by seed, or a random one.

        Raises:
            DataError: the task does not exist.
        """
        if task is None:
            return self._draw() if seed is None else seed % self.num_tasks
        try:
            if isinstance(task, bool):
                raise TypeError("not a number")
            index = operator.index(task)
        except TypeError:
            raise DataError(f"a {self._task_option} is {self._task_values}, not {task!r}") from None
        if not 0 <= index < self.num_tasks:
            raise DataError(
                f"no {self._task_option} {index} in {self._split}: there are {self.num_tasks} "
                "(0 is the first)"
            )
        return index

    def _draw(self) -> int:
        """Return the index of a random task."""
        return int(self.np_random.integers(self.num_tasks))

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedEnvironmentError("the environment is closed: make another one")

    def _require_running(self) -> None:
        self._require_open()
        if not self._running:
            raise ResetNeeded("no episode is running: call reset() first (or again, after its end)")
