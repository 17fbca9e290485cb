"""Estimators with one comparison per step: by trajectory, by state, by batch or with a critic."""

import numpy as np

from hgpo_rllib.advantages.groups import (
    ROUNDING,
    EstimatorSettings,
    Normalize,
    compare_levels,
    context_levels,
    group_advantage,
    group_mean,
    history_ids,
    leave_one_out,
)
from hgpo_rllib.advantages.steps import (
    Floats,
    Ints,
    StepArrays,
    discounted_sums,
    next_values,
    step_rewards,
)


def trajectory_level(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """GRPO (arXiv 2402.03300), Eq. 1: compare each trajectory's return with those of its task.

    All steps of a trajectory get its advantage. Each trajectory counts once, whatever its length.
    Reads normalize; needs trajectory_return.
    """
    return _compare_trajectories(steps, settings.normalize)[0]


def step_level(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Eq. 2: compare each step's return with those of the steps of its task and state.

    This is level 0 of HGPO and the ablation "without G_1:K" (Table 5).
    Reads normalize.
    """
    return next(compare_levels(steps, settings)).advantage


def gigpo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """GiGPO (arXiv 2505.10978): ``A = A_trajectory + ω A_step``, Eq. 1 plus ω times Eq. 2.

    Reads normalize, step_weight; needs trajectory_return.
    """
    by_state = step_level(steps, settings)
    return trajectory_level(steps, settings) + settings.step_weight * by_state


def rloo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """RLOO (arXiv 2402.14740): return minus the mean return of the task's other trajectories.

    0 for the only trajectory of a task. Reads no settings; needs trajectory_return.
    """
    return leave_one_out(*_compare_trajectories(steps, "mean"))


def reinforce(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """REINFORCE with a batch baseline: step return minus its mean over all steps of the batch.

    With `mean_std`, the result is divided by the batch's standard deviation, as in REINFORCE++
    (arXiv 2501.03262). Reads normalize.
    """
    return over_batch(steps.step_return, settings.normalize)


def ppo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """PPO (arXiv 1707.06347): `gae` over the turns of an episode, normalized over the batch.

    There is one value per turn, and all tokens of its response get its advantage. With one ratio
    per response (a setting of the learner) this is Turn-PPO (arXiv 2512.17008).
    Uses the critic's values in ``steps.value``; runs have a critic. If they are None, uses a table
    fitted to the same batch, see `tabular_value`.
    Reads normalize (over the batch), gamma, gae_lambda.
    """
    value = tabular_value(steps) if steps.value is None else steps.value
    return over_batch(gae(steps, value, settings.gamma, settings.gae_lambda), settings.normalize)


def oracle(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Oracle steps alone: compare only steps with the same whole history.

    This is "w/o HoG-1" (Table 2 of the paper's conference submission). The comparison is the least
    biased, but most groups are singletons, whose steps get 0.
    Reads normalize.
    """
    return group_advantage(history_ids(steps), steps.step_return, settings.normalize)[0]


def oracle_context(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Oracle steps in the paper's other sense, k = K: the deepest level of HGPO alone.

    Compares only steps with the same context C_K (Eq. 3), the current and the K previous states.
    Steps in singleton groups, or without a group, get 0.
    Reads context_length, normalize, contexts.
    """
    *_, deepest = compare_levels(steps, settings)
    return deepest.advantage


def oracle_else_step(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Oracle advantage for steps that share their whole history, Eq. 2 for the others.

    This is "w/o HoG-2" (Table 2 of the paper's conference submission): the two ends of the
    hierarchy without the levels between them. An Oracle advantage of 0 stays 0.
    Reads normalize.
    """
    own, size = group_advantage(history_ids(steps), steps.step_return, settings.normalize)
    return np.where(size > 1, own, step_level(steps, settings))


def gae(steps: StepArrays, value: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Compute generalized advantage estimates (arXiv 1506.02438) along each trajectory.

    ``A_t = sum_l (γλ)^l δ_{t+l} - p_t`` with ``δ_t = r_t + γ V_{t+1} - V_t`` and V = 0 after the
    last step (an episode truncated at the step limit is not bootstrapped). Rewards r are without
    the penalty p of an invalid action: with λ = 1, which gives ``R_t - V_t``, it affects only its
    own step. With a smaller λ, the penalty also affects earlier steps through V, which is fitted to
    returns with penalties.

    `value` is V of each step, and λ is from 0 (one-step differences) to 1 (whole returns).
    Value and result have shape ``(steps,)``.
    """
    difference = step_rewards(steps, gamma) + gamma * next_values(steps, value, last=0.0) - value
    advantage = discounted_sums(steps, difference, gamma * gae_lambda)
    # A mean of equal returns differs from them by rounding, which is no signal.
    advantage[np.abs(advantage) <= ROUNDING * np.abs(value).max(initial=0.0)] = 0.0
    return advantage - steps.penalties


def value_targets(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Return the critic's target for each step: its value plus its `gae`, shape ``(steps,)``.

    Reads gamma, gae_lambda; needs value. λ = 1 gives the step returns.
    """
    value = steps.require("value")
    return value + gae(steps, value, settings.gamma, settings.gae_lambda)


def tabular_value(steps: StepArrays) -> Floats:
    """Return the mean step return of each step's task and anchor, shape ``(steps,)``."""
    (state,) = context_levels(steps, 0)
    return group_mean(state, steps.step_return)


def over_batch(values: Floats, normalize: Normalize) -> Floats:
    """Return values centered, or standardized, over the batch."""
    return group_advantage(np.zeros(len(values), np.int64), values, normalize)[0]


def _compare_trajectories(steps: StepArrays, normalize: Normalize) -> tuple[Floats, Ints]:
    """Return the advantage of each step's trajectory, and the number of those in its task."""
    first, inverse = steps.first_steps
    returns = steps.require("trajectory_return")[first]
    advantage, size = group_advantage(steps.task[first], returns, normalize)
    return advantage[inverse], size[inverse]
