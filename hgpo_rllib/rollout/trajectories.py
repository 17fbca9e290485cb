"""Members' trajectories with their returns and advantages, for the learner and the records."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from hgpo_rllib.advantages import StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import value_targets
from hgpo_rllib.advantages.levels import Level, compare_levels
from hgpo_rllib.config import AlgorithmSettings


@dataclass(frozen=True)
class ScoredTrajectories:
    """Trajectories in a fixed order, and their steps' returns and advantages in that order."""

    members: list[SingleAgentEpisode]
    steps: StepArrays
    advantage: NDArray[np.float64]
    """Advantages of all steps, trajectory after trajectory, shape ``(steps,)``."""
    levels: tuple[Level, ...]
    """Every step compared with its group at depths k = 0, 1, …, K."""
    value_target: NDArray[np.float64] | None = None
    """What a critic is to say of each step, shape ``(steps,)``; None without one."""

    def advantages(self) -> list[NDArray[np.float64]]:
        """Per trajectory, shape ``(steps of the trajectory,)``."""
        return self.split(self.advantage)

    def returns(self) -> list[NDArray[np.float64]]:
        """Per trajectory, shape ``(steps of the trajectory,)``."""
        return self.split(self.steps.step_return)

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Per trajectory, the rows of what has one row a step."""
        ends = np.cumsum([len(member) for member in self.members])
        return np.split(values, ends[:-1])


def members_of(groups: Sequence[MultiAgentEpisode]) -> list[SingleAgentEpisode]:
    """The trajectories of all groups, in the order of everything that has one row a step."""
    return [member for group in groups for member in group.agent_episodes.values()]


def score_groups(
    groups: Sequence[MultiAgentEpisode],
    settings: AlgorithmSettings,
    value: NDArray[np.float64] | None = None,
) -> ScoredTrajectories:
    """Returns and advantages of all members' steps.

    Members of one group are the trajectories of one task: two groups that happen to play the same
    game are not compared with each other. `value` is what a critic says of every step, in the order
    of `members_of`; None without one.
    """
    members = members_of(groups)
    lengths = [len(member) for member in members]
    steps = StepArrays.from_columns(
        task=[member.multi_agent_episode_id for member in members for _ in range(len(member))],
        trajectory=np.repeat(np.arange(len(members)), lengths),
        time=np.concatenate([np.arange(length) for length in lengths]),
        anchor=[key for member in members for key in _anchors(member, settings.anchor)],
        reward=np.concatenate([member.get_rewards() for member in members]),
        invalid=[not valid for m in members for valid in m.get_extra_model_outputs("is_valid")],
        gamma=settings.gamma,
        invalid_penalty=settings.invalid_penalty,
        value=value,
    )
    of_estimator = settings.estimator_settings()
    levels = tuple(compare_levels(steps, of_estimator))
    advantage = find_estimator(settings.estimator)(steps, of_estimator, levels)
    target = None if value is None else value_targets(steps, of_estimator)
    return ScoredTrajectories(members, steps, advantage, levels, target)


def stale_rate(groups: list[MultiAgentEpisode], present: str) -> float:
    """Share of steps that were drawn under other weights than those of version `present`."""
    versions = [
        version
        for group in groups
        for member in group.agent_episodes.values()
        for version in member.get_extra_model_outputs("weight_version")
    ]
    return sum(version != present for version in versions) / len(versions)


def _anchors(member: SingleAgentEpisode, anchor: str) -> Sequence[Hashable]:
    """State keys that a member acted on, one a step."""
    acted_on = slice(0, len(member))
    if anchor == "state":
        infos = member.get_infos(acted_on)
        if "state_hash" not in infos[0]:
            raise ValueError("anchor='state' needs an environment that reports info['state_hash']")
        return [info["state_hash"] for info in infos]
    return member.get_observations(acted_on)
