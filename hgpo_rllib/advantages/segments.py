"""Credit for agents that set themselves sub-goals: segments of steps, one for each sub-goal."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.baselines import over_batch
from hgpo_rllib.advantages.groups import EstimatorSettings
from hgpo_rllib.advantages.steps import (
    Floats,
    StepArrays,
    discounted_sums,
    next_values,
    step_rewards,
)


class SegmentValues(NamedTuple):
    """Values, targets or advantages of each step; arrays of shape ``(steps,)``."""

    low: Floats
    """Entry for the action, given the state and the sub-goal."""
    high: Floats
    """Entry for the sub-goal, given the state. Only read where a segment begins."""
    switch: Floats
    """Entry for the decision to keep or to switch the sub-goal, given the state."""


def hiper(
    steps: StepArrays, begins: NDArray[np.bool_], value: SegmentValues, settings: EstimatorSettings
) -> tuple[SegmentValues, SegmentValues]:
    """HiPER (arXiv 2602.16165), released code: advantages of actions, sub-goals and switches.

    - low: GAE inside a segment, with λ and V_low. V_high of the next segment follows its last step.
    - high: GAE over segments, with λ_segment and the discount γ^d after a segment of d steps:
      ``A_k = R_k + γ^d V_high(k+1) - V_high(k) + γ^d λ_segment A_{k+1}``, where R_k is the
      discounted sum of the segment's rewards.
    - switch: ``Q_t - V_switch(t)``, with Q_t the discounted sum of the rewards up to the end of the
      segment and V_high of the next one.

    Values after the episode are 0, also if it is truncated. The penalty of an invalid action is
    treated as in `gae`. Each of the three is normalized by itself: over the steps of the batch,
    high over those where a segment begins.

    Reads normalize, gamma, gae_lambda, segment_lambda.

    Args:
        steps: the batch.
        begins: whether a segment begins at each step; true at time 0.
        value: the critic's values.
        settings: settings of the estimator.

    Returns:
        Advantages, and the targets of the values. In both, `high` is 0 where no segment begins.
    """
    gamma = settings.gamma
    following = next_values(steps, begins, last=0.0) > 0  # whether the next step begins a segment
    high = next_values(steps, value.high, last=0.0)
    low = np.where(following, high, next_values(steps, value.low, last=0.0))
    target = SegmentValues(
        low=lambda_returns(steps, low, np.where(following, 0.0, settings.gae_lambda), gamma),
        high=lambda_returns(steps, high, np.where(following, settings.segment_lambda, 1.0), gamma),
        switch=lambda_returns(steps, high, np.where(following, 0.0, 1.0), gamma),
    )
    raw = SegmentValues(*(goal - estimate for goal, estimate in zip(target, value, strict=True)))
    high = np.zeros(len(steps))
    high[begins] = over_batch(raw.high[begins], settings.normalize)
    return SegmentValues(
        over_batch(raw.low, settings.normalize),
        high,
        over_batch(raw.switch, settings.normalize),
    ), target._replace(high=np.where(begins, target.high, 0.0))


def lambda_returns(steps: StepArrays, following: Floats, decay: Floats, gamma: float) -> Floats:
    """Return ``y_t - p_t``, ``y_t = r_t + γ ((1 - λ_t) V_t + λ_t y_{t+1})``, shape ``(steps,)``.

    `following` is V_t, the value of the step after t, `decay` is λ_t, and p_t the penalty of an
    invalid action.
    """
    own = step_rewards(steps, gamma) + gamma * (1 - decay) * following
    return discounted_sums(steps, own, gamma * decay) - steps.penalties
