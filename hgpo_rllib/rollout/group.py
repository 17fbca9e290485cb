"""Groups: N members of one task, each at its own pace, and the RLlib episode they make."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError, EnvPool, EnvTimeoutError
from hgpo_rllib.rollout.member import Step, Trajectory
from hgpo_rllib.section import RunStoppedError

logger = logging.getLogger(__name__)
POLICY_ID = "policy"  # the one RLModule that all members share
FAILURES = ("env_errors", "env_timeouts", "request_errors", "lost_members", "lost_groups")
"""What a rollout counts: failed plays of a member by their cause, members that were given up after
`max_attempts` of them, and groups that these left with fewer than two members."""


def member_id(index: int) -> str:
    """RLlib agent id of a member."""
    return f"member_{index}"


def policy_of_member(agent_id: str, episode: MultiAgentEpisode | None = None, **kwargs: Any) -> str:
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
    ) -> list[MultiAgentEpisode]:
        """Play each task with a group; all go on at the same time, each at its own pace.

        Args:
            tasks: numbers of the tasks in their split.
            names: of the groups, different ones in a run but where they should be played alike.
            group_size: members N of each.

        Raises:
            RunStoppedError: nothing is left of any group.
        """
        played = await asyncio.gather(
            *(self.group(*pair, group_size) for pair in zip(tasks, names, strict=True))
        )
        groups = [group for group in played if group is not None]
        if not groups:
            counts = ", ".join(f"{name} {self.failures[name]}" for name in FAILURES)
            raise RunStoppedError(f"every episode of the rollout failed: {counts}")
        return groups

    async def group(self, task: int, name: str, group_size: int) -> MultiAgentEpisode | None:
        """Play one task with a group; None when fewer than two of its members could end."""
        trajectories = await asyncio.gather(
            *(self.member(task, name, index) for index in range(group_size))
        )
        ended = {member_id(i): t for i, t in enumerate(trajectories) if t is not None}
        if len(ended) < min(2, group_size):
            self.failures["lost_groups"] += 1
            return None
        return group_episode(name, ended)

    async def member(self, task: int, group: str, index: int) -> Trajectory | None:
        """Play one task with one member; None when no attempt could be ended."""
        async with self.slots:
            for attempt in range(self.max_attempts):
                try:
                    return await self._play(task, group, f"{index}/{attempt}")
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


def group_episode(name: str, trajectories: Mapping[str, Trajectory]) -> MultiAgentEpisode:
    """Members' trajectories as agents of one RLlib episode, whose id is `name`.

    The steps at time t of all members make one event, whenever they took place: members do not
    see each other.

    Every step stores, as extra model outputs: ``prompt_ids``, ``response_ids``,
    ``behaviour_logp`` (shape ``(response tokens,)``), ``weight_version``, ``weight_versions`` (see
    `Generation.versions`), ``completion``, ``action`` (as sent to the environment), ``is_valid``,
    ``prompt_truncated``, ``response_truncated``, ``request_s``, ``engine_s`` and ``env_s``. The
    step's anchor is its observation.
    """
    episode = MultiAgentEpisode(id_=name, agent_to_module_mapping_fn=policy_of_member)
    episode.add_env_reset(
        observations={m: t.observation for m, t in trajectories.items()},
        infos={m: t.info for m, t in trajectories.items()},
    )
    last = max(len(trajectory.steps) for trajectory in trajectories.values()) - 1
    for time in range(last + 1):
        steps = {m: t.steps[time] for m, t in trajectories.items() if time < len(t.steps)}
        episode.add_env_step(
            observations={m: step.observation for m, step in steps.items()},
            actions={m: step.act.action for m, step in steps.items()},
            rewards={m: step.reward for m, step in steps.items()},
            infos={m: step.info for m, step in steps.items()},
            terminateds={m: s.terminated for m, s in steps.items()} | {"__all__": time == last},
            truncateds={m: s.truncated for m, s in steps.items()} | {"__all__": False},
            extra_model_outputs={m: _outputs(step) for m, step in steps.items()},
        )
    return episode


def _outputs(step: Step) -> dict[str, Any]:
    act, response = step.act, step.act.response
    return {
        "prompt_ids": act.prompt_ids,
        "response_ids": response.token_ids,
        "behaviour_logp": response.logp,
        "weight_version": response.version,
        "weight_versions": response.versions,
        "completion": act.completion,
        "action": act.action,
        "is_valid": act.is_valid,
        "prompt_truncated": act.prompt_truncated,
        "response_truncated": response.finish_reason == "length",
        "request_s": act.request_s,
        "engine_s": response.engine_s,
        "env_s": step.env_s,
    }
