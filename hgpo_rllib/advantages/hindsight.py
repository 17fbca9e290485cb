"""Estimators that read a teacher: the policy with text about the whole episode in its prompts."""

import numpy as np

from hgpo_rllib.advantages.baselines import trajectory_level
from hgpo_rllib.advantages.groups import EstimatorSettings, group_advantage, group_mean
from hgpo_rllib.advantages.steps import Floats, StepArrays, next_values

TEMPERATURE = 5.0  # HCAPO's T, for all benchmarks of the paper
RATIO_BOUNDS = 0.8, 1.2  # HCAPO's C_min and C_max


def hcapo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """HCAPO (arXiv 2603.08754): Eq. 1, and returns weighted by how likely steps are in hindsight.

    With h_t the exponential of the mean log-probability of the tokens of a step's response, given
    the outcome, divided by T = 5 (the paper's Eq. 6):

    - ``ρ_t = clip(h_t / mean of h over the trajectory, 0.8, 1.2)`` (Eq. 7),
    - ``Q_t = ρ_t G_t`` (Eq. 5) with G_t the discounted sum of rewards from step t on, without
      penalties: ``γ^(T-t) R`` if only the last step has a reward,
    - ``Q'_t = (1 - s) Q_t + s Q_{t+1}``, where s is `hindsight_smoothing`,
    - ``A = A_trajectory + ω A_Q`` (Eq. 8) with A_Q the comparison of Q' over all steps of the task.
      In won episodes, negative A_Q count as 0.

    From a transcription of the paper's equations. Reconstructions: Q' of a last step is its Q, and
    the text that tells the outcome. Reads normalize, step_weight (ω), hindsight_smoothing; needs
    trajectory_return, won and teacher_nll.
    """
    likelihood = np.exp(-steps.require("teacher_nll") / TEMPERATURE)
    ratio = np.clip(likelihood / group_mean(steps.trajectory, likelihood), *RATIO_BOUNDS)
    penalty = 0.0 if steps.penalty is None else steps.penalty
    value = ratio * (steps.step_return + penalty)
    value += settings.hindsight_smoothing * (next_values(steps, value, last=value) - value)
    own, _ = group_advantage(steps.task, value, settings.normalize)
    own = np.where(steps.require("won"), np.maximum(own, 0.0), own)
    return trajectory_level(steps, settings) + settings.step_weight * own
