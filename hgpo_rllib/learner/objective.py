"""The objective of one micro-batch: token losses and statistics."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hgpo_rllib.learner.losses import (
    clipped_policy_loss,
    importance_weights,
    kl_estimate,
    log_ratio,
)
from hgpo_rllib.settings.learner import LearnerSettings


@dataclass(frozen=True)
class TokenLosses:
    """Losses and statistics of each token, arrays of shape ``(tokens,)``."""

    loss: Tensor
    """Sum of policy loss, KL term and entropy bonus."""
    policy_loss: Tensor
    """Clipped policy loss, including importance weights."""
    statistics: dict[str, Tensor]
    """Statistics, named as in `hgpo_rllib.metrics`."""


def token_losses(
    settings: LearnerSettings,
    tokens: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    reference_logp: Tensor | None,
) -> TokenLosses:
    """Compute the losses of a micro-batch's tokens, not yet weighted by ``tokens["weight"]``.

    Args:
        settings: terms of the objective and their coefficients.
        tokens: see `hgpo_rllib.learner.batching.token_batch`; must have ``old_logp``.
        outputs: ``logp`` and ``entropy`` of the tokens under the policy being trained.
        reference_logp: log-probabilities under the reference policy; None: no KL term.
    """
    logp, entropy = outputs["logp"], outputs["entropy"]
    policy_loss, clipped = clipped_policy_loss(
        logp,
        tokens["old_logp"],
        tokens["advantage"],
        settings.clip_low,
        settings.clip_high,
        settings.dual_clip,
    )
    statistics = {
        "clip_fraction": clipped,
        "entropy": entropy,
        "ratio_max": log_ratio(logp.detach(), tokens["old_logp"]).exp(),
    }
    if settings.importance_cap is not None or settings.importance_mask is not None:
        weight, cut = importance_weights(
            tokens["old_logp"],
            tokens["behaviour_logp"],
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
    if reference_logp is not None:
        kl = kl_estimate(logp, reference_logp, settings.kl_estimator, settings.kl_clamp)
        statistics["kl"] = kl
        loss = loss + settings.kl_coeff * kl
    return TokenLosses(loss, policy_loss, statistics)


def mismatch(learner_logp: Tensor, engine_logp: Tensor) -> dict[str, Tensor]:
    """Compare learner and engine on tokens that the engine sampled with the same weights.

    Returns:
        ``behaviour_logp_gap`` and ``behaviour_logp_gap_mean``, the absolute difference of their
        log-probabilities, and ``behaviour_kl``, the k3 estimate of KL(engine || learner), all per
        token.
    """
    gap = (learner_logp - engine_logp).abs()
    return {
        "behaviour_logp_gap": gap,
        "behaviour_logp_gap_mean": gap,
        "behaviour_kl": kl_estimate(engine_logp, learner_logp, "k3"),
    }
