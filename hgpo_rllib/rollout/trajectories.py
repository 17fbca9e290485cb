"""Members' trajectories with their returns and advantages, for the learner and the records."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from hgpo_rllib.advantages import HGPOEstimate, StepArrays, hgpo_advantages, step_returns
from hgpo_rllib.config import AlgorithmSettings


@dataclass(frozen=True)
class ScoredTrajectories:
    """Trajectories in a fixed order, and their steps' returns and advantages in that order."""

    members: list[SingleAgentEpisode]
    steps: StepArrays
    estimate: HGPOEstimate
    """Advantages of all steps, trajectory after trajectory."""

    def advantages(self) -> list[NDArray[np.float64]]:
        """Per trajectory, shape ``(steps of the trajectory,)``."""
        return self._split(self.estimate.advantage)

    def returns(self) -> list[NDArray[np.float64]]:
        """Per trajectory, shape ``(steps of the trajectory,)``."""
        return self._split(self.steps.step_return)

    def _split(self, values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        ends = np.cumsum([len(member) for member in self.members])
        return np.split(values, ends[:-1])


def score_groups(
    groups: Sequence[MultiAgentEpisode], settings: AlgorithmSettings
) -> ScoredTrajectories:
    """Returns and HGPO advantages of all members' steps.

    The anchor of a step is the observation it acted on, as in the paper.
    """
    members = [member for group in groups for member in group.agent_episodes.values()]
    steps = StepArrays.from_trajectories(
        tasks=[member.multi_agent_episode_id for member in members],
        anchors=[member.get_observations(slice(0, len(member))) for member in members],
        returns=[
            step_returns(
                member.get_rewards(),
                [not valid for valid in member.get_extra_model_outputs("is_valid")],
                settings.gamma,
                settings.invalid_penalty,
            )
            for member in members
        ],
    )
    estimate = hgpo_advantages(
        steps,
        context_length=settings.context_length,
        weight_alpha=settings.weight_alpha,
        normalize=settings.normalize,
        contexts=settings.contexts,
    )
    return ScoredTrajectories(members, steps, estimate)
