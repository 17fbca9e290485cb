"""Groups: N members of one task, each at its own pace."""

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
POLICY_ID = "policy"  # the one RLModule that all members share
FAILURES = ("env_errors", "env_timeouts", "request_errors", "lost_members", "lost_groups")
"""What a rollout counts: failed plays of a member by their cause, members that were given up after
`max_attempts` of them, and groups that these left with fewer than two members."""


def member_id(index: int) -> str:
    """Name of a member: RLlib's agent id, and its name in the records."""
    return f"member_{index}"


def policy_of_member(agent_id: str, *args: Any, **kwargs: Any) -> str:
    """RLlib's agent-to-module mapping: every member acts with the shared policy."""
    return POLICY_ID


@dataclass(eq=False)
class Rollout:
    """What the groups of one rollout share."""

    begin: BeginAgent
    pool: EnvPool
    max_attempts: int
    """Times that a member is played before it is given up."""
    slots: asyncio.Semaphore
    """As many as episodes may be played at the same time."""
    failures: Counter[str] = field(default_factory=Counter)
    """By the names in `FAILURES`."""
    _running: tuple[asyncio.AbstractEventLoop, Any] | None = field(default=None, init=False)

    async def groups(
        self, tasks: Sequence[int], names: Sequence[str], group_size: int
    ) -> list[Trajectory]:
        """Play each task with a group; all go on at the same time, each at its own pace.

        Args:
            tasks: numbers of the tasks in their split.
            names: of the groups, different ones in a run but where they should be played alike.
            group_size: members N of each.

        Returns:
            All members' trajectories, group after group, without the groups in which fewer than two
            members could end.

        Raises:
            RunStoppedError: nothing is left of any group.
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
        """Stop playing: `groups` raises CancelledError. May be called from another thread."""
        if self._running is not None:
            loop, task = self._running
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

    async def member(self, task: int, group: str, index: int) -> Trajectory | None:
        """Play one task with one member; None when no attempt could be ended."""
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
                    self.pool.give_back(env)  # one that failed is not used again
                    return replace(trajectory, group=group, member=index)
        self.failures["lost_members"] += 1
        return None


async def play_task(
    env: gym.Env, pool: EnvPool, task: int, begin: Callable[[dict[str, Any]], Agent]
) -> Trajectory:
    """Play a task until it is won, or until the agent does not want to play it again.

    Args:
        env: taken from `pool`.
        pool: steps the environment.
        task: seed that the environment's reset makes the task from.
        begin: the agent of the episode that an info began.

    Returns:
        The last episode, with those before it.

    Raises:
        EnvFailedError: the environment raises an error, or hangs.
        RequestFailedError: the model refuses a prompt.
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
    """Play from an environment's reset, which gave this observation and info, to the end."""
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
