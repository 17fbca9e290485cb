"""Compute one advantage per step from per-step arrays, in NumPy (no Ray, torch or text).

    steps = StepArrays.from_columns(task, trajectory, time, anchor, reward=reward, invalid=invalid)
    advantage = find_estimator("hgpo")(steps, EstimatorSettings(context_length=2))

Read the modules in this order: `steps` (the arrays), `groups` (groups by shared history and
comparison within them), `baselines`, `hierarchy`, `graph`, `likelihood`, `hindsight`, `strategies`,
`tokens` and `segments` (the estimators), `diagnostics` (statistics of the groups of a batch).
"""

from hgpo_rllib.advantages.estimators import ESTIMATORS, Estimator, find_estimator
from hgpo_rllib.advantages.groups import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays

__all__ = ["ESTIMATORS", "Estimator", "EstimatorSettings", "StepArrays", "find_estimator"]
