"""Play groups: N episodes of the same task, concurrently and not in lockstep."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from hgpo_rllib.agent import Agent, AgentFactory
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError, EnvPool, EnvTimeoutError
from hgpo_rllib.rollout.trajectory import EarlierTrial, Step, Trajectory

logger = logging.getLogger(__name__)
FAILURES = (
    "env_errors",
    "env_timeouts",
    "request_errors",
    "lost_members",
    "lost_groups",
    "stale_groups",
    "replaced_groups",
)
"""Failure counts of a rollout: failed attempts by cause, members discarded after `max_attempts`
failed attempts, and groups discarded because fewer than two members (none, in groups of one) were
left, because a response was sampled with weights that are too old, or because all returns were
equal."""
T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """A group to play."""

    split: str
    task: int
    """Number of the task in its split."""
    name: str
    """Name of the group, unique in a run. The same name gives the same response seeds."""
    size: int
    """Number of members N."""
    temperature: float


class PlayedGroup(NamedTuple):
    """Result of playing a group."""

    trajectories: list[Trajectory]
    failures: Counter[str]
    """Failure counts by the names in `FAILURES`."""


PlayMember = Callable[[int, str, str], Coroutine[Any, Any, Trajectory]]
"""Plays a task as a member of a group, given the task's number, the name of the group, which is
unique in a run, and a name in the group. Both names seed the sampling. Raises EnvFailedError, or
RequestFailedError if a request to the model failed."""


@dataclass(eq=False)
class GroupPlayer:
    """Plays members of groups."""

    play: PlayMember
    max_attempts: int
    """Maximum number of attempts to play a member's episode."""
    slots: asyncio.Semaphore
    """Limits the number of concurrent episodes."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failure counts by the names in `FAILURES`."""

    async def play_group(self, group: Group) -> PlayedGroup:
        """Play all members of a group concurrently.

        There are no trajectories if fewer than two members finished (fewer than one if the group
        has one member).

        Raises:
            RunStoppedError: the policy server does not respond.
        """
        members = [self.play_member(group.task, group.name, index) for index in range(group.size)]
        played = [trajectory for trajectory in await gather(members) if trajectory is not None]
        if len(played) < min(2, group.size):
            self.failures["lost_groups"] += 1
            played = []
        return PlayedGroup(played, self.failures)

    async def play_member(self, task: int, group: str, index: int) -> Trajectory | None:
        """Play one task with one member; return None if all attempts failed."""
        async with self.slots:
            for attempt in range(self.max_attempts):
                try:
                    trajectory = await self.play(task, group, f"{index}/{attempt}")
                except (EnvFailedError, RequestFailedError) as error:
                    cause = _cause(error)
                    self.failures[cause] += 1
                    what = f"{group}/{index}: {cause} in attempt {attempt + 1}"
                    logger.warning("%s: %s", what, error)
                else:
                    return replace(trajectory, group=group, member=index)
        self.failures["lost_members"] += 1
        return None


def merge_groups(played: Sequence[PlayedGroup]) -> PlayedGroup:
    """Return the trajectories, ordered by group, and the failure counts of all groups.

    Raises:
        RunStoppedError: there are no trajectories.
    """
    trajectories = [trajectory for group in played for trajectory in group.trajectories]
    failures = sum((group.failures for group in played), Counter[str]())
    if not trajectories:
        counts = ", ".join(f"{name} {failures[name]}" for name in FAILURES)
        raise RunStoppedError(f"every episode of the rollout failed: {counts}")
    return PlayedGroup(trajectories, failures)


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; like `asyncio.gather`, but cancel the others if one fails."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # does nothing if it is done


async def play_in_pool(
    make_agent: AgentFactory, pool: EnvPool, task: int, group: str, name: str
) -> Trajectory:
    """Play a task until the agent wins it or does not retry; see `PlayMember`.

    The seed of the reset selects the task. Returns the last episode, with the lost ones before it
    in ``earlier``.
    """
    async with pool.lend() as env:
        observation, info = await pool.call(reset, env, task)
        agent, earlier = make_agent(info, group, name), list[EarlierTrial]()
        while True:
            trajectory = await play_episode(env, pool, agent, observation, info)
            if trajectory.won:
                break
            reflection = await agent.reflect(trajectory.steps[-1].observation)
            if reflection is None:
                break
            earlier.append(EarlierTrial(trajectory, reflection))
            observation, info = await pool.call(reset, env, task)
    return replace(trajectory, earlier=tuple(earlier))


async def play_episode(
    env: gym.Env, pool: EnvPool, agent: Agent, observation: str, info: dict[str, Any]
) -> Trajectory:
    """Play one episode, given the observation and info of the environment's reset."""
    # Copies, since an environment may return the same dictionary again, with other content.
    trajectory, ended = Trajectory(dict(info), []), False
    while not ended:
        turn = await agent.act(observation, info)
        acted = time.perf_counter()
        taken = await pool.call(take_step, env, turn.action)
        observation, reward, terminated, truncated, info = taken
        ended = terminated or truncated
        env_s = time.perf_counter() - acted
        trajectory.steps.append(Step(turn, observation, reward, terminated, truncated, info, env_s))
    return trajectory


def reset(env: gym.Env, task: int) -> tuple[str, dict[str, Any]]:
    """Reset to a task; ValueError or TypeError if the result is not that of a text environment.

    Called in the environment's thread, so this is an error of the environment.
    """
    observation, info = env.reset(seed=task)
    if not isinstance(observation, str):
        raise ValueError(f"a reset returned an observation of type {type(observation).__name__}")
    return observation, info


def take_step(env: gym.Env, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """Take a step; see `reset` for errors."""
    observation, reward, terminated, truncated, info = env.step(action)
    reward = float(reward)
    if not isinstance(observation, str) or not math.isfinite(reward):
        kind = type(observation).__name__
        raise ValueError(f"a step returned the reward {reward} and an observation of type {kind}")
    return observation, reward, terminated, truncated, dict(info)


def _cause(error: EnvFailedError | RequestFailedError) -> str:
    if isinstance(error, EnvTimeoutError):
        return "env_timeouts"
    return "env_errors" if isinstance(error, EnvFailedError) else "request_errors"
