"""Groups: N members of one task, each at its own pace."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym

from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError, EnvPool, EnvTimeoutError
from hgpo_rllib.rollout.trajectory import Trajectory
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


Play = Callable[[gym.Env, EnvPool, int, str, str], Awaitable[Trajectory]]
"""Plays a task once: environment, its pool, task, name of the group, name of the member in it."""


@dataclass
class Rollout:
    """What the groups of one rollout share."""

    play: Play
    pool: EnvPool
    max_attempts: int
    """Times that a member is played before it is given up."""
    slots: asyncio.Semaphore
    """As many as episodes may be played at the same time."""
    failures: Counter[str] = field(default_factory=Counter)
    """By the names in `FAILURES`."""

    async def groups(
        self, tasks: Sequence[int], names: Sequence[str], group_size: int
    ) -> list[Trajectory]:
        """Play each task with a group; all go on at the same time, each at its own pace.

        Args:
            tasks: numbers of the tasks in their split.
            names: of the groups, different ones in a run but where they should be played alike.
            group_size: members N of each.

        Returns:
            All members' trajectories, group after group.

        Raises:
            RunStoppedError: nothing is left of any group.
        """
        played = await asyncio.gather(
            *(self.group(*pair, group_size) for pair in zip(tasks, names, strict=True))
        )
        if not any(played):
            counts = ", ".join(f"{name} {self.failures[name]}" for name in FAILURES)
            raise RunStoppedError(f"every episode of the rollout failed: {counts}")
        return [trajectory for group in played for trajectory in group]

    async def group(self, task: int, name: str, group_size: int) -> list[Trajectory]:
        """Play one task with a group; empty when fewer than two of its members could end."""
        trajectories = await asyncio.gather(
            *(self.member(task, name, index) for index in range(group_size))
        )
        ended = [trajectory for trajectory in trajectories if trajectory is not None]
        if len(ended) < min(2, group_size):
            self.failures["lost_groups"] += 1
            return []
        return ended

    async def member(self, task: int, group: str, index: int) -> Trajectory | None:
        """Play one task with one member; None when no attempt could be ended."""
        async with self.slots:
            for attempt in range(self.max_attempts):
                try:
                    trajectory = await self._play(task, group, f"{index}/{attempt}")
                    return replace(trajectory, group=group, member=index)
                except (EnvFailedError, RequestFailedError) as error:
                    cause = _cause(error)
                    self.failures[cause] += 1
                    what = f"{group}/{index}: {cause} in attempt {attempt + 1}"
                    logger.warning("%s: %s", what, error)
        self.failures["lost_members"] += 1
        return None

    async def _play(self, task: int, group: str, name: str) -> Trajectory:
        env = await self.pool.take()
        trajectory = await self.play(env, self.pool, task, group, name)
        self.pool.give_back(env)  # one that failed is not used again
        return trajectory


def _cause(error: EnvFailedError | RequestFailedError) -> str:
    if isinstance(error, EnvTimeoutError):
        return "env_timeouts"
    return "env_errors" if isinstance(error, EnvFailedError) else "request_errors"
