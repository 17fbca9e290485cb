"""Registry of the advantage estimators, which share one signature and are selected by name.

Equation numbers refer to the HGPO paper (arXiv 2602.22817) unless another source is named.
"""

from typing import Protocol

from hgpo_rllib.advantages import baselines, graph, hierarchy, likelihood
from hgpo_rllib.advantages.baselines import Floats, Levels
from hgpo_rllib.advantages.groups import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays


class Estimator(Protocol):
    """Pure function of the steps of a batch and the settings."""

    __name__: str

    def __call__(
        self, steps: StepArrays, settings: EstimatorSettings, levels: Levels = None
    ) -> Floats:
        """Return one advantage per step, shape ``(steps,)``."""


ESTIMATORS: dict[str, Estimator] = {
    function.__name__: function
    for function in (
        # the paper's method and its baselines
        hierarchy.hgpo,
        baselines.gigpo,
        baselines.grpo,
        baselines.rloo,
        baselines.reinforce,
        baselines.ppo,
        # the paper's ablations (Table 5, and Table 2 of the submission)
        hierarchy.hgpo_no_hierarchy,
        hierarchy.hgpo_uniform,
        hierarchy.hgpo_base_group,
        baselines.oracle,
        baselines.oracle_context,
        baselines.oracle_else_step,
        # beyond the paper
        hierarchy.hgpo_leave_one_out,
        hierarchy.hgpo_uncertainty,
        hierarchy.hgpo_gae,
        # of other papers
        graph.graphgpo,
        graph.g2po,
        graph.gagpo,
        graph.salt,
        likelihood.gaca,
        likelihood.empg,
    )
}


WITHOUT_STATES = ("grpo", "rloo", "reinforce", "ppo", "empg")
"""Estimators that do not compare steps by their state."""


def find_estimator(name: str) -> Estimator:
    """Return the estimator registered as `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
