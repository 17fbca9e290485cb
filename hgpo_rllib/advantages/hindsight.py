"""Estimators that read a teacher: the policy with text about the whole episode in its prompts."""

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.baselines import trajectory_level
from hgpo_rllib.advantages.groups import EstimatorSettings, group_advantage, group_mean
from hgpo_rllib.advantages.steps import NONE, Floats, Ints, StepArrays, next_values

TEMPERATURE = 5.0  # HCAPO's T, for all benchmarks of the paper
RATIO_BOUNDS = 0.8, 1.2  # HCAPO's C_min and C_max
SPIKE = 2.0  # standard deviations from the mean of the response
LARGEST_WEIGHT = 2.0  # of a token in `gear`, before normalization; the smallest is 1 / 2


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
    value = ratio * (steps.step_return + steps.penalties)
    value += settings.hindsight_smoothing * (next_values(steps, value, last=value) - value)
    own, _ = group_advantage(steps.task, value, settings.normalize)
    own = np.where(steps.require("won"), np.maximum(own, 0.0), own)
    return trajectory_level(steps, settings) + settings.step_weight * own


def gear(advantage: Floats, response: Ints, logp: Floats, teacher_logp: Floats) -> Floats:
    """GEAR-style (arXiv 2605.11853): weight the tokens of a response by a teacher with a plan.

    With Δ the teacher's log-probability of a token less that when it was sampled, and A the
    advantage of its step (Eq. 1 for the estimator of this name): ``A_j = A w_j / mean of w over the
    response`` with ``w_j = clip(exp(sign(A) Δ), 1 / 2, 2)``. Δ is that of token j, or of the anchor
    of its segment:

    - An anchor is a token whose absolute Δ is more than 2 standard deviations above the mean of its
      response: there the policy departs from the teacher.
    - A segment goes from an anchor to the next anchor, or to the next token whose negative
      log-probability is as far above its mean: a new decision of the policy.

    A reconstruction from the abstract. Known are anchors at spikes of the divergence, segments that
    get the weight of their anchor and end by entropy, and weights of single tokens elsewhere. All
    formulas and constants here are reconstructions; as in `empg`, negative log-probabilities of
    sampled tokens stand for entropies.

    All arrays have one value per response token, ordered by response.

    Args:
        advantage: advantage of the token's step.
        response: response of the token, 0, 1, …, ascending.
        logp: log-probability of the token when it was sampled.
        teacher_logp: its log-probability by the teacher.

    Returns:
        Advantages of tokens, shape ``(tokens,)``.
    """
    gap = teacher_logp - logp
    anchor = _stands_out(np.abs(gap), response)
    first = np.diff(response, prepend=NONE) != 0
    start = first | anchor | _stands_out(-logp, response)
    segment = np.maximum.accumulate(np.where(start, np.arange(len(start)), 0))
    gap = np.where(anchor[segment], gap[segment], gap)
    bound = np.log(LARGEST_WEIGHT)
    weight = np.exp(np.clip(np.sign(advantage) * gap, -bound, bound))
    return advantage * weight / group_mean(response, weight)


def _stands_out(values: Floats, response: Ints) -> NDArray[np.bool_]:
    return group_advantage(response, values, "mean_std")[0] > SPIKE
