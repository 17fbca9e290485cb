"""Advantages: pure NumPy, from per-step arrays to one advantage a step. No Ray, torch or text."""

from hgpo_rllib.advantages.contexts import context_ids
from hgpo_rllib.advantages.estimators import HGPOEstimate, hgpo_advantages
from hgpo_rllib.advantages.steps import StepArrays, step_returns

__all__ = ["HGPOEstimate", "StepArrays", "context_ids", "hgpo_advantages", "step_returns"]
