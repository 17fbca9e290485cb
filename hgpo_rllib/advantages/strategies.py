"""Credit for strategies, which several trajectories follow."""

import numpy as np

from hgpo_rllib.advantages.groups import EstimatorSettings, group_advantage
from hgpo_rllib.advantages.steps import Floats, StepArrays


def strata(steps: StepArrays, settings: EstimatorSettings) -> Floats:
    """StraTA (arXiv 2605.06642): compare each strategy with the other strategies of its task.

    The value of a strategy is the mean return of the best share δ of the M trajectories that follow
    it, of max(1, round(δ M)) trajectories. All their steps get the advantage of the strategy among
    the N values, by Eq. 1. The tokens of the strategy get this advantage. Those of actions get that
    of another estimator, which compares the trajectories of one strategy (equal `steps.task`;
    `steps.parent` is the task).

    Without `parent`, each trajectory has a strategy of its own, which gives Eq. 1.
    A reconstruction from summaries: rounding and δ were not found.
    Reads normalize, strategy_share; needs trajectory_return.
    """
    first, inverse = steps.first_steps
    returns = steps.require("trajectory_return")[first]
    if steps.parent is None:
        task, strategy = steps.task, steps.trajectory
    else:
        task, strategy = steps.parent, steps.task
    _, start, index, count = np.unique(
        strategy[first], return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((-returns, index))  # by strategy, the best first
    rank = np.arange(len(first)) - (np.cumsum(count) - count)[index[order]]
    best = order[rank < np.maximum(1, np.rint(settings.strategy_share * count))[index[order]]]
    value = np.bincount(index[best], returns[best]) / np.bincount(index[best])
    advantage, _ = group_advantage(task[first[start]], value, settings.normalize)
    return advantage[index][inverse]
