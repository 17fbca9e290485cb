"""Advantages: pure NumPy, from per-step arrays to one advantage a step. No Ray, torch or text.

    steps = StepArrays.from_columns(task, trajectory, time, anchor, reward=reward, invalid=invalid)
    advantage = find_estimator("hgpo")(steps, EstimatorSettings(context_length=2))

Read `steps` (the arrays), `contexts` (who shares which history), `groups` (comparison within a
group), `levels` (at each depth), then `baselines` and `hierarchy` (the estimators); `diagnostics`
says what the groups of a batch are worth, `bias_variance` what the estimators are, where the truth
is known.
"""

from hgpo_rllib.advantages.estimators import ESTIMATORS, Estimator, find_estimator
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays

__all__ = ["ESTIMATORS", "Estimator", "EstimatorSettings", "StepArrays", "find_estimator"]
