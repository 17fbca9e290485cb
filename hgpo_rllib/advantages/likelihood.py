"""Estimators that weight steps by how likely their responses were when they were sampled."""

import numpy as np

from hgpo_rllib.advantages.baselines import step_level, trajectory_level
from hgpo_rllib.advantages.groups import EstimatorSettings, group_advantage
from hgpo_rllib.advantages.steps import Floats, StepArrays, next_values

BONUS = 0.05  # EMPG's ζ, as in the released code; another copy of it has 0.1


def gaca(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """GACA (arXiv 2609.12424): mix Eq. 1 and Eq. 2 by the likelihood of each step's response.

    ``A = c A_step + (1 - c) A_trajectory``, where c increases with the step's negative
    log-probability: unlikely responses, which decide more, rely on the comparison by state. A step
    that shares its state with no other step has ``A_step = 0``.

    A reconstruction from the abstract, which does not give c. Here c is the logistic function of
    the negative log-probability in standard deviations from its mean over the trajectory. It needs
    no constant, keeps c between 0 and 1, and gives 1/2 at the mean: GiGPO with ω = 1, halved.

    Reads normalize; needs trajectory_return and nll.
    """
    deviation, _ = group_advantage(steps.trajectory, steps.require("nll"), "mean_std")
    share = 1 / (1 + np.exp(-deviation))
    whole = trajectory_level(steps, settings)
    return share * step_level(steps, settings) + (1 - share) * whole


def empg(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """EMPG (arXiv 2509.09265): weight Eq. 1 by the entropy of each step's response.

    With H the entropy of a step, scaled to 0 … 1 over the batch: ``A = g(H_t) A_trajectory +
    ζ f(H_{t+1})`` less its mean over the batch, where ``g(H) = exp(-k H)`` divided by its mean over
    the batch, and ``f(H) = exp(-k' H)``. The second term, a bonus for steps that lead to a
    confident one, is 0 for last steps. Because of it, steps of a task with equal returns have an
    advantage too.

    From a released re-implementation, whose constants are k = k' = 1 and ζ = 0.05. It uses the mean
    entropy of the predicted distributions. Engines return only the log-probabilities of the sampled
    tokens, so H is their negative mean: that of a token is an unbiased estimate of the entropy at
    its position, from one sample.

    Reads normalize; needs trajectory_return and nll.
    """
    entropy = steps.require("nll")
    if not len(steps):
        return np.zeros(0)
    entropy = (entropy - entropy.min()) / (np.ptp(entropy) + 1e-8)
    confidence = np.exp(-entropy)  # g and f, as k = k' = 1 in the released code
    advantage = confidence / confidence.mean() * trajectory_level(steps, settings)
    advantage += BONUS * next_values(steps, confidence, last=0.0)
    return advantage - advantage.mean()
