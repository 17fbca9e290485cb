"""Play groups: N episodes of the same task, concurrently and not in lockstep."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym

from hgpo_rllib.agent import Agent, BeginAgent
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError, EnvPool, EnvTimeoutError
from hgpo_rllib.rollout.trajectory import LostEpisode, Step, Trajectory
from hgpo_rllib.section import RunStoppedError

logger = logging.getLogger(__name__)
FAILURES = ("env_errors", "env_timeouts", "request_errors", "lost_members", "lost_groups")
"""Failure counts of a rollout: failed attempts by cause, members discarded after `max_attempts`
failed attempts, and groups discarded because fewer than two members were left."""


@dataclass(eq=False)
class Rollout:
    """State shared by the groups of one rollout."""

    begin: BeginAgent
    pool: EnvPool
    max_attempts: int
    """Maximum number of attempts to play a member's episode."""
    slots: asyncio.Semaphore
    """Limits the number of concurrent episodes."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failure counts by the names in `FAILURES`."""
    _running: tuple[asyncio.AbstractEventLoop, Any] | None = field(default=None, init=False)

    async def groups(
        self, tasks: Sequence[int], names: Sequence[str], group_size: int
    ) -> list[Trajectory]:
        """Play each task with one group; all episodes run concurrently.

        Args:
            tasks: numbers of the tasks in their split.
            names: names of the groups; groups with the same name get the same response seeds.
            group_size: number of members N per group.

        Returns:
            The members' trajectories, ordered by group, without the groups in which fewer than two
            members finished (fewer than one if `group_size` is 1).

        Raises:
            RunStoppedError: no group is left.
        """
        self._running = asyncio.get_running_loop(), asyncio.current_task()
        members = [
            self.member(task, name, index)
            for task, name in zip(tasks, names, strict=True)
            for index in range(group_size)
        ]
        played = await asyncio.gather(*members)
        trajectories = []
        for first in range(0, len(played), group_size):
            ended = [t for t in played[first : first + group_size] if t is not None]
            if len(ended) < min(2, group_size):
                self.failures["lost_groups"] += 1
            else:
                trajectories += ended
        if not trajectories:
            counts = ", ".join(f"{name} {self.failures[name]}" for name in FAILURES)
            raise RunStoppedError(f"every episode of the rollout failed: {counts}")
        return trajectories

    def cancel(self) -> None:
        """Make `groups` raise CancelledError. Thread-safe."""
        if self._running is not None:
            loop, task = self._running
            with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(task.cancel)

    async def member(self, task: int, group: str, index: int) -> Trajectory | None:
        """Play one task with one member; return None if all attempts failed."""
        async with self.slots:
            for attempt in range(self.max_attempts):
                try:
                    env = await self.pool.take()
                    begin = partial(self.begin, group=group, name=f"{index}/{attempt}")
                    trajectory = await play_task(env, self.pool, task, begin)
                except (EnvFailedError, RequestFailedError) as error:
                    cause = _cause(error)
                    self.failures[cause] += 1
                    what = f"{group}/{index}: {cause} in attempt {attempt + 1}"
                    logger.warning("%s: %s", what, error)
                else:
                    self.pool.give_back(env)  # failed ones are discarded
                    return replace(trajectory, group=group, member=index)
        self.failures["lost_members"] += 1
        return None


async def play_task(
    env: gym.Env, pool: EnvPool, task: int, begin: Callable[[dict[str, Any]], Agent]
) -> Trajectory:
    """Play a task until the agent wins it or does not retry.

    `env` is taken from `pool`, whose thread runs it. `task` is the seed of the reset, which selects
    the task. `begin` creates the agent from the info of the reset.

    Returns:
        The last episode, with the lost ones before it in ``earlier``.

    Raises:
        EnvFailedError: the environment raised an error or timed out.
        RequestFailedError: a request to the model failed.
    """
    observation, info = await pool.call(env.reset, seed=task)
    agent, earlier = begin(info), list[LostEpisode]()
    while True:
        trajectory = await play_episode(env, pool, agent, observation, info)
        if trajectory.won:
            break
        reflection = await agent.reflect(trajectory.steps[-1].observation)
        if reflection is None:
            break
        earlier.append(LostEpisode(trajectory, reflection))
        observation, info = await pool.call(env.reset, seed=task)
    return replace(trajectory, earlier=tuple(earlier))


async def play_episode(
    env: gym.Env, pool: EnvPool, agent: Agent, observation: str, info: dict[str, Any]
) -> Trajectory:
    """Play one episode, given the observation and info of the environment's reset."""
    trajectory, ended = Trajectory(info, []), False
    while not ended:
        turn = await agent.act(observation, info)
        acted = time.perf_counter()
        observation, reward, terminated, truncated, info = await pool.call(env.step, turn.action)
        ended = terminated or truncated
        env_s = time.perf_counter() - acted
        trajectory.steps.append(
            Step(turn, observation, float(reward), terminated, truncated, info, env_s)
        )
    return trajectory


def _cause(error: EnvFailedError | RequestFailedError) -> str:
    if isinstance(error, EnvTimeoutError):
        return "env_timeouts"
    return "env_errors" if isinstance(error, EnvFailedError) else "request_errors"
