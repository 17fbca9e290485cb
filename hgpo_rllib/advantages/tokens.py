"""Estimators with one advantage per token, from a critic's values of turns and tokens.

The discounts of GAE are γ and λ between turns and 1 between the tokens of a response, whose reward
is at its last token. Sums over the tokens of a response then telescope, so each estimator is a
closed form of the `gae` over turns and the values of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hgpo_rllib.advantages.baselines import gae, over_batch, value_targets
from hgpo_rllib.advantages.groups import EstimatorSettings, group_mean
from hgpo_rllib.advantages.steps import Floats, Ints, StepArrays, discounted_sums, step_rewards


@dataclass(frozen=True)
class TokenArrays:
    """Response tokens of one batch, one entry per token; every array has shape ``(tokens,)``."""

    step: Ints
    """Row of the token's step in the step arrays."""
    response: Ints
    """Response of the token, 0, 1, …; a step of an agent with one role has one response."""
    value: Floats
    """The critic's value before the token."""


TokenEstimator = Callable[[StepArrays, TokenArrays, EstimatorSettings], tuple[Floats, Floats]]
"""Pure function that returns the advantage of each token, and the target of its value."""


def ppo_tokens(
    steps: StepArrays, tokens: TokenArrays, settings: EstimatorSettings
) -> tuple[Floats, Floats]:
    """PPO (arXiv 1707.06347) through all turns: GAE over the tokens of an episode's responses.

    With token j of turn k: ``δ_kj = r_kj + g V_next - V_kj`` and ``A_kj = δ_kj + g l A_next``. The
    next token is that of the same response (g = l = 1) or the first of the next turn (g = γ,
    l = λ). Hence ``A_kj = A_k + V_k - V_kj``, with A_k the `gae` of the turn and V_k = V_k1 its
    value. The target is ``A_kj + V_kj``, so it is that of the turn. γ = λ = 1 is plain GAE with
    γ = λ = 1 over all tokens.

    Reads normalize (over the tokens of the batch), gamma, gae_lambda; needs value.
    """
    target = value_targets(steps, settings)[tokens.step]
    return over_batch(target - tokens.value, settings.normalize), target


def vetta(
    steps: StepArrays, tokens: TokenArrays, settings: EstimatorSettings
) -> tuple[Floats, Floats]:
    """VETTA: the `gae` of the turn plus the centered advantage of the token.

    ``A_kj = A_k + α (A_tok_kj - mean_j A_tok_kj)``. A_tok is GAE with γ = λ = 1 over all tokens,
    ``A_tok_kj = U_k - V_kj`` with U_k the sum of rewards from turn k on, minus the penalty of
    turn k. It has a value function of its own, V_kj, with target U_k. The centered advantage is
    therefore ``mean_j V_kj - V_kj``.

    The normalization is a reconstruction: over the tokens of the batch, as in `ppo_tokens`.
    Reads normalize, gamma, gae_lambda, token_weight (α); needs value.
    """
    turn = gae(steps, steps.require("value"), settings.gamma, settings.gae_lambda)
    residual = group_mean(tokens.response, tokens.value) - tokens.value
    advantage = turn[tokens.step] + settings.token_weight * residual
    rewards = step_rewards(steps, settings.gamma)
    target = discounted_sums(steps, rewards, 1.0) - steps.penalties
    return over_batch(advantage, settings.normalize), target[tokens.step]


TOKEN_ESTIMATORS: dict[str, TokenEstimator] = {"ppo_tokens": ppo_tokens, "vetta": vetta}
