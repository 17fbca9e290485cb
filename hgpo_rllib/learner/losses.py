"""The objective on response tokens: pure functions of flat token arrays, shape ``(tokens,)``."""

import torch
from torch import Tensor

from hgpo_rllib.settings.learner import KLEstimator, Level

LOG_RATIO_CLAMP = 20.0  # of log-probability differences, so that exp() cannot overflow


def log_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """``logp - old_logp`` within ± `LOG_RATIO_CLAMP`; outside, the gradient is zero."""
    return (logp - old_logp).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)


def clipped_policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate (Eq. 8 of the paper), negated so that it is minimised.

    Args:
        logp: log-probability of each token under the policy being learned.
        old_logp: the same under the policy that drew it.
        advantage: the advantage of each token's step.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.
        dual_clip: where the advantage is negative, the loss is at most ``dual_clip * -advantage``
            (Ye et al. 2020); None: not bounded.

    Returns:
        Loss of each token, and whether clipping removed its gradient.
    """
    ratio = log_ratio(logp, old_logp).exp()
    surrogate = ratio * advantage
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    objective, cut = torch.minimum(surrogate, clipped), clipped < surrogate
    if dual_clip is not None:
        bound = dual_clip * advantage
        below = (advantage < 0) & (objective < bound)
        objective, cut = torch.where(below, bound, objective), cut | below
    return -objective, cut


def kl_estimate(
    logp: Tensor, reference_logp: Tensor, estimator: KLEstimator, clamp: float | None = None
) -> Tensor:
    """Schulman's estimates of KL(policy || reference) on each token that the policy drew.

    With ``d = reference_logp - logp``: k1 is ``-d``, k2 is ``d² / 2``, k3 is ``exp(d) - d - 1``.
    The means of k1 and k3 are the KL. As losses, the mean gradient of k1 is 0, that of k2 is the
    KL's, that of k3 is the one of KL(reference || policy). `clamp` bounds the estimate on both
    sides.
    """
    d = log_ratio(reference_logp, logp)
    if estimator == "k1":
        estimate = -d
    elif estimator == "k2":
        estimate = d.square() / 2
    else:
        estimate = d.exp() - d - 1
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def importance_weights(
    learner_logp: Tensor,
    engine_logp: Tensor,
    sequence: Tensor,
    level: Level,
    cap: float | None = None,
    bounds: tuple[float, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights of sampled tokens: probability under the learner over that under the engine.

    Args:
        learner_logp: log-probability of each token by the learner, at the weights that sampled.
        engine_logp: the same by the engine that sampled.
        sequence: number of the response that each token belongs to.
        level: the weight of a token is its own ratio, or the product over its response.
        cap: weights are truncated at this; None: they are 1.
        bounds: outside of them the weight is 0, whatever `cap` says; None: nowhere.

    Returns:
        Weight of each token, without gradient, and whether it was truncated or set to 0.
    """
    difference = (learner_logp - engine_logp).detach()
    if level == "sequence":
        sums = difference.new_zeros(int(sequence.max()) + 1).index_add(0, sequence, difference)
        difference = sums[sequence]
    ratio = difference.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP).exp()
    weight = torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)
    cut = torch.zeros_like(ratio, dtype=torch.bool) if cap is None else ratio > cap
    if bounds is not None:
        outside = (ratio < bounds[0]) | (ratio > bounds[1])
        weight, cut = weight.masked_fill(outside, 0.0), cut | outside
    return weight, cut
