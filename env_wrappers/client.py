"""Placeholder for an environment that a client of the gateway runs."""

from collections.abc import Mapping
from typing import Any, NoReturn

import gymnasium

from env_wrappers.errors import DataError
from env_wrappers.spaces import AnyText


class ClientEnv(gymnasium.Env[str, str]):
    """Numbers the tasks that a client plays through the gateway (docs/gateway.md).

    The run uses it to choose the next task. ``reset(seed=s)`` starts task
    ``s % num_tasks``, whose ``game`` in ``info`` is "SPLIT/NUMBER". There are no steps.

    Attributes:
        num_tasks: number of tasks in the split.
    """

    def __init__(
        self,
        name: str,
        tasks: Mapping[str, int],
        split: str = "train",
        data: None = None,
        max_steps: int = 50,
    ) -> None:
        """Set the numbers of tasks.

        Args:
            name: name of the client's environment, by which success is reported.
            tasks: number of tasks by split.
            split: one of them.
            data: None; the client has the data.
            max_steps: not used here; the gateway limits a session to this many turns.

        Raises:
            DataError: there is no such split, or it has no task.
        """
        if data is not None:
            raise DataError("hgpo/Client-v0 has no data, the client has: leave env.data out")
        if split not in tasks:
            raise DataError(f"tasks has no split {split!r}, only {', '.join(tasks)}: add it")
        if tasks[split] < 1:
            raise DataError(f"tasks.{split} must be at least 1, not {tasks[split]}")
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.num_tasks = tasks[split]
        self._name, self._split = name, split

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a task; see the class."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(self.num_tasks) if seed is None else seed % self.num_tasks
        info = {"goal": "", "game": f"{self._split}/{drawn}", "task_type": self._name}
        return "", {**info, "admissible_actions": [], "won": False}

    def step(self, action: str) -> NoReturn:
        """Raise DataError."""
        raise DataError(
            "hgpo/Client-v0 has no steps, only a client of the gateway plays it: set "
            "rollout.gateway_port"
        )
