"""Estimators that value states by the transitions of a task's trajectories."""

import numpy as np

from hgpo_rllib.advantages.baselines import gae, tabular_value, trajectory_level
from hgpo_rllib.advantages.groups import (
    ROUNDING,
    EstimatorSettings,
    context_levels,
    group_advantage,
    group_mean,
)
from hgpo_rllib.advantages.steps import (
    NONE,
    Floats,
    StepArrays,
    discounted_sums,
    intern_pairs,
    next_values,
)

SUCCESS = 10.0  # reward of a won episode, as in ALFWorld and WebShop


def graphgpo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """GraphGPO (arXiv 2605.26684): compare distances to success in the graph of transitions.

    Each step of a task's trajectories is an edge from its state to the next one; the last step of
    a won episode leads to success. With d the length of the shortest path to success, the value of
    a step is ``10 γ^d(s_{t+1})`` with γ = `distance_discount`, and ``A = A_task + ω A_state``: the
    trajectory's return compared over all steps of the task, plus ω times the step's value, less the
    penalty of an invalid action, compared with steps of the same state. States without a path to
    success count as one step farther than the farthest with one.

    From the released code, without its options to merge similar states and to normalize distances.
    Reads normalize, step_weight, distance_discount; needs trajectory_return, next_anchor and won.
    """
    distance = success_distance(steps)
    value: Floats = SUCCESS * np.power(settings.distance_discount, distance)
    (state,) = context_levels(steps, 0)
    own, _ = group_advantage(state, value - steps.penalties, settings.normalize)
    return _over_task(steps, settings) + settings.step_weight * own


def g2po(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """G2PO (arXiv 2606.22995): compare the values of the states that steps lead to.

    The value of a state is the mean over its visits of ``γ^n R``, with n the number of steps from
    the visit to the end and R = 10 if the episode was won, 0 otherwise. A step that ends the
    episode leads to a value of R. ``A = A_task + ω (A_state + A_gain)``: the trajectory's return
    compared over all steps of the task; the next state's value less the penalty of an invalid
    action, compared with steps of the same state; and the difference of the two states' values,
    compared over all steps of the task.

    From the released code, whose γ is 0.95.
    Reads normalize, step_weight, gamma; needs trajectory_return and won.
    """
    outcome = np.where(steps.require("won"), SUCCESS, 0.0)
    remaining = discounted_sums(steps, np.ones(len(steps)), 1.0)
    (state,) = context_levels(steps, 0)
    value = group_mean(state, settings.gamma**remaining * outcome)
    following = next_values(steps, value, last=outcome)
    own, _ = group_advantage(state, following - steps.penalties, settings.normalize)
    gain, _ = group_advantage(steps.task, following - value, settings.normalize)
    return _over_task(steps, settings) + settings.step_weight * (own + gain)


def gagpo(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """GAGPO (arXiv 2605.13217): generalized advantages with the mean return of a state as value.

    V of a state is the mean step return of its visits in the task (`tabular_value`). The result of
    `gae` is compared over all steps of the task. A reconstruction from the abstract: γ and λ of the
    paper were not found, and its ratio per action belongs to the loss.
    Reads normalize, gamma, gae_lambda.
    """
    advantage = gae(steps, tabular_value(steps), settings.gamma, settings.gae_lambda)
    return group_advantage(steps.task, advantage, settings.normalize)[0]


def salt(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """SALT (arXiv 2510.20022): share the advantage of Eq. 1 among steps that are the same edge.

    Steps of a task are the same edge of its graph if their state, the K states before it, action
    and next state are equal. They get the mean of their trajectories' advantages, so a step that
    won and lost trajectories have in common gets little. Other steps keep their trajectory's
    advantage. Every step counts once in the mean, so merging does not change the sum of advantages.

    A reconstruction from summaries: the depth of the history that has to agree was not found. K is
    that of HGPO here; 0 compares the edge alone.
    Reads normalize, context_length; needs trajectory_return, action and next_anchor.
    """
    whole = trajectory_level(steps, settings)
    *_, context = context_levels(steps, settings.context_length)
    transition = intern_pairs(steps.require("action"), steps.require("next_anchor"))
    edge = intern_pairs(context, transition)
    shared = group_mean(edge, whole)
    # What all trajectories of a task share has no signal, but its mean is not exactly 0.
    shared[np.abs(shared) <= ROUNDING * group_mean(edge, np.abs(whole))] = 0.0
    return shared


def success_distance(steps: StepArrays) -> Floats:
    """Return the number of steps from each step's next state to success, shape ``(steps,)``.

    0 for the last step of a won episode. If no path leads to success, the largest distance in the
    task plus 1.

    Raises:
        ValueError: the steps have no next_anchor or won.
    """
    # Here, because all commands import this module, and SciPy is slow to import.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    states = np.concatenate([steps.anchor, steps.require("next_anchor")])
    both = intern_pairs(np.tile(steps.task, 2), states)
    source, target = np.split(both, 2)
    ends = np.ones(len(steps), bool)
    ends[steps.previous[steps.previous != NONE]] = False
    success = int(both.max(initial=-1)) + 1  # a node of all tasks: no edge leaves it
    target = np.where(ends & steps.require("won"), success, target)
    reverse = csr_array((np.ones(len(steps)), (target, source)), shape=(success + 1, success + 1))
    distance = dijkstra(reverse, indices=success, unweighted=True)  # infinite without a path
    own = distance[source]
    farthest = np.zeros(int(steps.task.max(initial=-1)) + 1)
    known = np.isfinite(own)
    np.maximum.at(farthest, steps.task[known], own[known])
    result = distance[target]
    return np.where(np.isfinite(result), result, farthest[steps.task] + 1)


def _over_task(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """Compare returns of trajectories over all steps of the task: long ones count more."""
    returns = steps.require("trajectory_return")
    return group_advantage(steps.task, returns, settings.normalize)[0]
