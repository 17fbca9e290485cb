"""The objective on response tokens: pure functions of flat token arrays, shape ``(tokens,)``."""

import torch
from torch import Tensor

KL_CLAMP = 20.0  # of log-probability differences, so that exp() cannot overflow


def clipped_policy_loss(
    logp: Tensor, behaviour_logp: Tensor, advantage: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped surrogate (Eq. 8 of the paper), negated so that it is minimised.

    Args:
        logp: log-probability of each token under the policy being learned.
        behaviour_logp: the same under the policy that drew it.
        advantage: the advantage of each token's step.
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: the ratio is clipped above at ``1 + clip_high``.

    Returns:
        Loss of each token, and whether clipping removed its gradient.
    """
    ratio = (logp - behaviour_logp).clamp(-KL_CLAMP, KL_CLAMP).exp()
    surrogate = ratio * advantage
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantage
    return -torch.minimum(surrogate, clipped), clipped < surrogate


def k3_kl(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) on each token: ``exp(d) - d - 1``."""
    difference = (reference_logp - logp).clamp(-KL_CLAMP, KL_CLAMP)
    return difference.exp() - difference - 1
