"""Registry of the advantage estimators, which share one signature and are selected by name.

Equation numbers refer to the HGPO paper (arXiv 2602.22817) unless another source is named.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from hgpo_rllib.advantages import baselines, graph, hierarchy, hindsight, likelihood, strategies
from hgpo_rllib.advantages.groups import EstimatorSettings
from hgpo_rllib.advantages.steps import Floats, StepArrays
from hgpo_rllib.advantages.tokens import TOKEN_ESTIMATORS

Estimator = Callable[[StepArrays, EstimatorSettings], Floats]
"""Pure function that returns one advantage per step, shape ``(steps,)``."""

HIPER = "hiper"
STRATA = "strata"
STRATEGY = "strategy"
"""Role of responses that are strategies. `STRATA` is its only estimator."""

ESTIMATORS: dict[str, Estimator] = {
    # the paper's method and its baselines
    "hgpo": hierarchy.hgpo,
    "gigpo": baselines.gigpo,
    "grpo": baselines.trajectory_level,
    "rloo": baselines.rloo,
    "reinforce": baselines.reinforce,
    "ppo": baselines.ppo,
    # the paper's ablations (Table 5, and Table 2 of the submission)
    "hgpo_no_hierarchy": baselines.step_level,
    "hgpo_uniform": hierarchy.hgpo_uniform,
    "hgpo_base_group": hierarchy.hgpo_base_group,
    "oracle": baselines.oracle,
    "oracle_context": baselines.oracle_context,
    "oracle_else_step": baselines.oracle_else_step,
    # beyond the paper
    "hgpo_leave_one_out": hierarchy.hgpo_leave_one_out,
    "hgpo_uncertainty": hierarchy.hgpo_uncertainty,
    "hgpo_gae": hierarchy.hgpo_gae,
    "hgpo_shrinkage": hierarchy.hgpo_shrinkage,
    # of other papers
    "graphgpo": graph.graphgpo,
    "g2po": graph.g2po,
    "gagpo": graph.gagpo,
    "salt": graph.salt,
    "gaca": likelihood.gaca,
    "empg": likelihood.empg,
    STRATA: strategies.strata,
    "hcapo": hindsight.hcapo,
    # with a distillation loss (`hgpo_rllib.learner.losses.gated_distillation`)
    "sdar": baselines.trajectory_level,
    # with advantages of tokens (`hindsight.gear`, `tokens`, `segments`); these are for turns
    "gear": baselines.trajectory_level,
    "ppo_tokens": baselines.ppo,
    "vetta": baselines.ppo,
    HIPER: baselines.ppo,
}

NEEDS_TOKEN_VALUES = (*TOKEN_ESTIMATORS, HIPER)
"""Estimators that read a critic's values at tokens of responses."""
CRITIC_OUTPUTS = {"vetta": 2, HIPER: 3}
"""Number of the critic's outputs at a token, of estimators that need more than one."""
NEEDS_CRITIC = ("ppo", *NEEDS_TOKEN_VALUES)
"""Estimators that read the values of a critic."""
TEACHERS: Mapping[str, Literal["outcome", "plan"]] = {
    "hcapo": "outcome",
    "gear": "plan",
    "sdar": "plan",
}
"""Text about the episode in the teacher's prompts, by estimator that reads a teacher."""

WITHOUT_STATES = ("grpo", "rloo", "reinforce", "empg", STRATA, *TEACHERS, *NEEDS_CRITIC)
"""Estimators that do not compare steps by their state."""
WITHOUT_GROUPS = (*NEEDS_CRITIC, "reinforce")
"""Estimators that do not compare trajectories of one task."""


def find_estimator(name: str) -> Estimator:
    """Return the estimator registered as `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
