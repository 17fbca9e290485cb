"""Play any Gymnasium environment whose observations and actions can be written as text."""

import copy
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from env_wrappers.errors import DataError, check_known
from env_wrappers.spaces import ANY_ACTION
from env_wrappers.text_env import TextEnv

FIRST_SEED = {"train": 0, "test": 1_000_000}
"""Seed of the first task of each split; a split has at most as many tasks as lie between them."""
_STYLED = re.compile(r"\x1b\[(?!0m)([\d;]+)m([^\x1b]*)\x1b\[0m")
_COLOR_CODE = re.compile("(?:3|4|9|10)[0-8]")  # of text and background, each normal and bright
_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")


class GymnasiumEnv(TextEnv):
    """An environment registered with Gymnasium, in text.

    Observations are the environment's if they are strings, otherwise its rendering with
    ``render_mode="ansi"``. Actions are texts, or numbers (a ``Discrete`` space) that have names. An
    action that is not offered, or not in the action space, does nothing.

    Task ``i`` is the environment after ``reset(seed=i)``, in the split "test" after
    ``reset(seed=1_000_000 + i)``. An episode is won if it terminates with a reward of at least
    ``success_reward`` in its last step.
    """

    _task_option = "game"
    _task_values = "a number below num_tasks"

    def __init__(
        self,
        name: str,
        goal: str | None = None,
        actions: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        num_tasks: int = 1_000,
        data: None = None,
        split: str = "train",
        max_steps: int = 50,
        success_reward: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        """Create the environment.

        Args:
            name: its Gymnasium id, such as "FrozenLake-v1", or "MODULE:ID".
            goal: the task in words, for the prompt; None: the first observation says it.
            actions: names of the actions, in lower case as agents write them: one for each number
                of a ``Discrete`` space. For text: the actions to offer; None: any text.
            arguments: further arguments of the environment.
            num_tasks: number of tasks in the split.
            data: None; an environment gets its data by its own arguments.
            split: "train" or "test".
            max_steps: steps after which an episode is truncated, in place of the registered limit.
            success_reward: see the class.
            render_mode: see ``TextEnv``.

        Raises:
            DataError: an argument is unknown or out of range.
            gymnasium.error.Error: there is no such environment.
        """
        super().__init__(max_steps, success_reward, render_mode)
        if data is not None:
            raise DataError("hgpo/Gymnasium-v0 has no data: leave env.data out, see arguments")
        check_known("split", split, FIRST_SEED)
        if not 1 <= num_tasks <= FIRST_SEED["test"]:
            raise DataError(f"num_tasks is from 1 to {FIRST_SEED['test']:,}, not {num_tasks}")
        self.num_tasks = num_tasks
        self._name, self._goal, self._arguments = name, goal, dict(arguments or {})
        self._split = split
        self._env = self._make()
        if "ansi" in (self._env.metadata.get("render_modes") or ()):
            self._env.close()
            self._env = self._make(render_mode="ansi")
        space = self._env.action_space
        names = list(actions or ())
        self._actions: dict[str, Any] = {name: name for name in names}  # those of the environment
        if isinstance(space, Discrete):
            if len(names) != space.n or len({*names}) != space.n:
                raise DataError(f"{name} has {space.n} actions: actions must name each, in order")
            self._actions = {name: int(space.start) + i for i, name in enumerate(names)}
        elif not isinstance(space.sample(), str):
            raise DataError(f"{name} has actions of {space}: only text and Discrete can be played")
        if any(action != action.strip().lower() for action in self._actions):
            raise DataError("actions must be in lower case, without surrounding spaces")

    def _make(self, **render: str) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(
            self._name, max_episode_steps=-1, disable_env_checker=True, **render, **self._arguments
        )

    def _begin(self, seed: int | None, task: Any) -> tuple[str, dict[str, Any]]:
        number = FIRST_SEED[self._split] + self._choose(seed, task)
        self._won = False
        text = self._text(self._env.reset(seed=number)[0])
        goal = text if self._goal is None else self._goal
        facts = {"goal": goal, "task_type": self._name, "game": f"{self._name}/{number}"}
        return text, facts

    def _act(self, action: str) -> tuple[str, float, bool, bool]:
        own = self._actions.get(action) if self._actions else action
        if own is None or not self._env.action_space.contains(own):
            return str(self._last_observation), 0.0, False, True
        observation, reward, terminated, truncated, _ = self._env.step(own)
        self._won = bool(terminated) and float(reward) >= self._success_reward
        # The registered step limit is off, so an environment that truncates has ended by itself.
        return self._text(observation), float(reward), bool(terminated or truncated), False

    def _text(self, observation: Any) -> str:
        with np.printoptions(threshold=sys.maxsize):  # all numbers of a large array
            content = str(observation)
        self._state_hash = hashlib.sha256(content.encode()).hexdigest()[:16]
        if isinstance(observation, str):
            return observation
        if self._env.render_mode != "ansi":
            raise DataError(
                f"{self._name} cannot be played in text: its observations are not strings, and it "
                "has no render mode 'ansi'"
            )
        return without_colors(str(self._env.render()))

    def _info(self) -> dict[str, Any]:
        return {
            "admissible_actions": list(self._actions) or [ANY_ACTION],
            "won": self._won,
            "state_hash": self._state_hash,
        }

    def _settings(self) -> dict[str, Any]:
        mine = {"name": self._name, "arguments": self._arguments}
        return super()._settings() | mine | {"list of actions": list(self._actions)}

    def _save(self) -> Any:
        return copy.deepcopy(self._env), self._won, self._state_hash

    def _load(self, episode: Any) -> None:
        env, self._won, self._state_hash = episode
        self._env = copy.deepcopy(env)

    def close(self) -> None:
        """See ``TextEnv``."""
        self._env.close()
        super().close()


def without_colors(text: str) -> str:
    """Return text of a terminal with colored parts in words, ``[red S]``, and no other styles."""
    found = 1
    while found:  # from the inside out, as styles can be nested
        text, found = _STYLED.subn(_in_words, text)
    return text


def _in_words(styled: re.Match[str]) -> str:
    codes, text = styled.groups()
    colors = [code for code in codes.split(";") if _COLOR_CODE.fullmatch(code)]
    return f"[{_COLORS[int(colors[0]) % 10]} {text}]" if colors else text
