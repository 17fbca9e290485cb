"""Several text environments as one Gymnasium environment."""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from env_wrappers.errors import DataError, check_known
from env_wrappers.spaces import AnyText

MAX_TASKS = 1_000_000
_AGENT_SETTINGS = ("prompt", "memory_length")


class MixtureEnv(gymnasium.Env[str, str]):
    """Tasks of several text environments, in proportion to their weights.

    ``reset(seed=s)`` plays task ``s % num_tasks``, and ``reset()`` one drawn from ``np_random``.
    The split "train" has the tasks of the split "train" of all environments, numbered one
    environment after the other. The number of tasks of an environment is proportional to its
    weight; so that all of its tasks are among them, some occur several times. The split
    "alfworld.valid_seen" has the tasks of "valid_seen" of the environment named "alfworld".

    ``info`` is that of the environment. Under ``mixture`` it also has the ``environment``'s name,
    and its ``prompt`` and ``memory_length``, if they are given.

    Attributes:
        environments: the environments that the split needs, by name.
        num_tasks: number of tasks in the split.
    """

    def __init__(
        self,
        environments: Mapping[str, Mapping[str, Any]],
        split: str = "train",
        data: None = None,
        max_steps: int = 50,
    ) -> None:
        """Create the environments that the split needs.

        Args:
            environments: by name: ``env_id``, and optionally ``weight`` (1), ``data`` (None),
                ``options`` (further arguments), ``max_steps`` (that of the mixture, which is also
                its maximum), ``prompt`` and ``memory_length``.
            split: see the class.
            data: ignored, as each environment has its own.
            max_steps: steps after which an episode is truncated.

        Raises:
            DataError: there is no such environment, or the weights differ too much.
        """
        self.observation_space, self.action_space = AnyText(), AnyText()
        name, _, part = split.rpartition(".")
        if name:
            check_known("environment", name, environments)
        chosen = {name: environments[name]} if name else environments
        self.environments = {
            key: gymnasium.make(
                settings["env_id"],
                disable_env_checker=True,
                split=part,
                data=settings.get("data"),
                max_steps=min(settings.get("max_steps") or max_steps, max_steps),
                **settings.get("options", {}),
            )
            for key, settings in chosen.items()
        }
        self._facts = {
            key: {"environment": key}
            | {k: settings[k] for k in _AGENT_SETTINGS if settings.get(k) is not None}
            for key, settings in chosen.items()
        }
        self._sizes = [env.get_wrapper_attr("num_tasks") for env in self.environments.values()]
        weights = [settings.get("weight", 1.0) for settings in chosen.values()]
        self._ends = list(itertools.accumulate(task_counts(self._sizes, weights)))
        self.num_tasks = self._ends[-1]
        self._playing = next(iter(chosen))

    def find(self, task: int) -> tuple[str, int]:
        """Return the name of a task's environment, and the number of the task there."""
        place = bisect.bisect_right(self._ends, task)
        start = self._ends[place - 1] if place else 0
        return list(self.environments)[place], (task - start) % self._sizes[place]

    @property
    def task_types(self) -> list[str]:
        """The type of each task, after the name of its environment: "textcraft/depth 2".

        Raises:
            AttributeError: an environment has no ``task_types``.
        """
        own = {name: env.get_wrapper_attr("task_types") for name, env in self.environments.items()}
        return [f"{name}/{own[name][task]}" for name, task in map(self.find, range(self.num_tasks))]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see the class. `options` are those of the task's environment."""
        super().reset(seed=seed)
        drawn = self.np_random.integers(self.num_tasks) if seed is None else seed % self.num_tasks
        self._playing, own = self.find(int(drawn))
        observation, info = self.environments[self._playing].reset(seed=own, options=options)
        return observation, info | {"mixture": dict(self._facts[self._playing])}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action in the environment of the running episode."""
        observation, reward, *ended, info = self.environments[self._playing].step(action)
        facts = {"mixture": dict(self._facts[self._playing])}
        return observation, float(reward), *ended, info | facts

    def close(self) -> None:
        """Close all environments."""
        for env in self.environments.values():
            env.close()


def task_counts(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return numbers of tasks in proportion to weights, each at least the environment's size.

    Raises:
        DataError: they are more than `MAX_TASKS` together.
    """
    largest = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    counts = [math.ceil(round(weight * largest, 6)) for weight in weights]
    if sum(counts) > MAX_TASKS:
        raise DataError(
            f"weights {', '.join(f'{weight:g}' for weight in weights)} differ too much for "
            f"{', '.join(map(str, sizes))} tasks: a mixture has at most {MAX_TASKS:,} tasks"
        )
    return counts
