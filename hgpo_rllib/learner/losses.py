"""The objective of one micro-batch: pure functions of flat arrays of shape ``(tokens,)``."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hgpo_rllib.settings.learner import KLEstimator, LearnerSettings, RatioLevel

SDAR_BETA = 5.0
LOG_RATIO_CLAMP = 20.0  # bound on log-probability differences, so that exp() cannot overflow


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamp a difference of log-probabilities to ± `LOG_RATIO_CLAMP`; the gradient is 0 outside."""
    return log_ratio.clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)


def reduce_over_response(values: Tensor, response: Tensor, level: RatioLevel) -> Tensor:
    """Sum or average values over each response, as `level` says; ``token`` returns them.

    `response` is the index of each token's response. All arrays have shape ``(tokens,)``.
    """
    if level == "token":
        return values
    lengths = torch.bincount(response)
    sums = values.new_zeros(len(lengths)).index_add(0, response, values)
    if level == "sequence-mean":
        sums = sums / lengths.clamp(min=1)
    return sums[response]


def clipped_policy_loss(
    ratio: Tensor,
    advantage: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped surrogate of each token, negated for minimization.

    `ratio` is the probability of a token under the policy being trained over that under the policy
    that sampled it, clipped to ``1 - clip_low … 1 + clip_high``. For negative advantages, the loss
    is at most ``dual_clip * -advantage`` (Ye et al. 2020).

    Returns:
        Loss of each token, and whether clipping removed its gradient.
    """
    surrogate = ratio * advantage
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    objective, cut = torch.minimum(surrogate, clipped), clipped < surrogate
    if dual_clip is not None:
        bound = dual_clip * advantage
        below = (advantage < 0) & (objective < bound)
        objective, cut = torch.where(below, bound, objective), cut | below
    return -objective, cut


def cispo_loss(
    logp: Tensor, ratio: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Compute CISPO's loss of each token (arXiv 2506.13585): ``-clip(ratio) * advantage * logp``.

    The ratio, clipped as in `clipped_policy_loss`, has no gradient. Unlike with PPO, every token
    has one.

    Returns:
        Loss of each token, and whether its ratio was clipped.
    """
    ratio = ratio.detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantage * logp, weight != ratio


def kl_estimate(
    logp: Tensor, reference_logp: Tensor, estimator: KLEstimator, clamp: float | None = None
) -> Tensor:
    """Compute Schulman's estimate of KL(policy || reference) for each token the policy sampled.

    With ``d = reference_logp - logp``: k1 is ``-d``, k2 is ``d² / 2``, k3 is ``exp(d) - d - 1``.
    The means of k1 and k3 are the KL. As losses, the mean gradient is 0 for k1, that of the KL for
    k2, and that of KL(reference || policy) for k3. `clamp` bounds the estimate on both sides.
    """
    d = clamp_log_ratio(reference_logp - logp)
    if estimator == "k1":
        estimate = -d
    elif estimator == "k2":
        estimate = d.square() / 2
    else:
        estimate = d.expm1() - d  # exp(d) - d - 1 would round to noise for small d
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def importance_weights(
    learner_logp: Tensor,
    behavior_logp: Tensor,
    response: Tensor,
    level: RatioLevel,
    cap: float | None,
    bounds: tuple[float, float] | None,
) -> tuple[Tensor, Tensor]:
    """Compute importance weights: token probability under the learner over the engine's.

    Both log-probabilities are at the sampling weights. For `response` and `level` see
    `reduce_over_response`. `cap` is the upper bound of the weights; None: all weights are 1. Ratios
    outside of `bounds` get weight 0, whatever `cap` is.

    Returns:
        Weight of each token, without gradient, and whether it was truncated or set to 0.
    """
    difference = reduce_over_response((learner_logp - behavior_logp).detach(), response, level)
    ratio = clamp_log_ratio(difference).exp()
    weight = torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)
    cut = torch.zeros_like(ratio, dtype=torch.bool) if cap is None else ratio > cap
    if bounds is not None:
        outside = (ratio < bounds[0]) | (ratio > bounds[1])
        weight, cut = weight.masked_fill(outside, 0.0), cut | outside
    return weight, cut


def gated_distillation(logp: Tensor, teacher_logp: Tensor) -> Tensor:
    """Compute SDAR's loss of each token that the policy sampled (arXiv 2605.15155).

    With ``d = teacher_logp - logp``: ``sigmoid(5 d) d``. The gate, the sigmoid, has no gradient. It
    is near 0 where the teacher finds the token less likely. From the released code.
    """
    d = clamp_log_ratio(teacher_logp - logp)
    return torch.sigmoid(SDAR_BETA * d.detach()) * d


@dataclass(frozen=True)
class TokenLosses:
    """Losses and statistics of each token, arrays of shape ``(tokens,)``."""

    loss: Tensor
    """Sum of policy loss, KL term, entropy bonus and distillation loss."""
    policy_loss: Tensor
    """PPO's or CISPO's loss, including importance weights."""
    statistics: dict[str, Tensor]
    """Statistics, named as in `hgpo_rllib.metrics`."""


def token_losses(
    settings: LearnerSettings, tokens: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> TokenLosses:
    """Compute the losses of a micro-batch's tokens, not yet weighted by ``tokens["weight"]``.

    `tokens` is a `token_batch` (batching.py) with ``old_logp``. `outputs` has ``logp``
    and ``entropy`` under the policy being trained. Without ``reference_logp`` in `tokens` there is
    no KL term, without ``teacher_logp`` no distillation loss.
    """
    logp, entropy = outputs["logp"], outputs["entropy"]
    # The tokens of a response share its ratio, unless the ratio is that of each token.
    ratio = clamp_log_ratio(
        reduce_over_response(logp - tokens["old_logp"], tokens["row"], settings.ratio_level)
    ).exp()
    advantage, bounds = tokens["advantage"], (settings.clip_low, settings.clip_high)
    if settings.policy_loss == "cispo":
        policy_loss, clipped = cispo_loss(logp, ratio, advantage, *bounds)
    else:
        policy_loss, clipped = clipped_policy_loss(ratio, advantage, *bounds, settings.dual_clip)
    statistics = {"clip_fraction": clipped, "entropy": entropy, "ratio_max": ratio}
    if settings.importance_cap is not None or settings.importance_mask is not None:
        weight, cut = importance_weights(
            tokens["old_logp"],
            tokens["behavior_logp"],
            tokens["row"],
            settings.importance_level,
            settings.importance_cap,
            settings.importance_mask,
        )
        policy_loss = policy_loss * weight
        statistics |= {"importance_weight": weight, "importance_cut_fraction": cut}
    loss = policy_loss
    if settings.entropy_coeff > 0:
        loss = loss - settings.entropy_coeff * entropy
    if "reference_logp" in tokens:
        reference = tokens["reference_logp"]
        kl = kl_estimate(logp, reference, settings.kl_estimator, settings.kl_clamp)
        statistics["kl"] = kl
        loss = loss + settings.kl_coeff * kl
    if "teacher_logp" in tokens:
        loss = loss + settings.distillation_coeff * gated_distillation(logp, tokens["teacher_logp"])
    return TokenLosses(loss, policy_loss, statistics)


def mismatch(learner_logp: Tensor, behavior_logp: Tensor) -> dict[str, Tensor]:
    """Compare learner and engine on tokens that the engine sampled with the same weights.

    Returns:
        ``behavior_logp_gap`` and ``behavior_logp_gap_mean``, the absolute difference of their
        log-probabilities, and ``behavior_kl``, the k3 estimate of KL(engine || learner), all per
        token.
    """
    gap = (learner_logp - behavior_logp).abs()
    return {
        "behavior_logp_gap": gap,
        "behavior_logp_gap_mean": gap,
        "behavior_kl": kl_estimate(behavior_logp, learner_logp, "k3"),
    }
