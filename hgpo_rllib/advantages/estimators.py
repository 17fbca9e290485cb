"""Registry of the advantage estimators, which share one signature and are selected by name.

Equation numbers refer to the HGPO paper (arXiv 2602.22817) unless another source is named.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.baselines import gigpo, grpo, oracle, ppo, reinforce, rloo
from hgpo_rllib.advantages.hierarchy import (
    hgpo,
    hgpo_base_group,
    hgpo_leave_one_out,
    hgpo_no_hierarchy,
    hgpo_uncertainty,
    hgpo_uniform,
)
from hgpo_rllib.advantages.levels import Level
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays


class Estimator(Protocol):
    """Pure function of the steps of a batch and the settings."""

    __name__: str

    def __call__(
        self, steps: StepArrays, settings: EstimatorSettings, levels: Iterable[Level] | None = None
    ) -> NDArray[np.float64]:
        """Return one advantage per step, shape ``(steps,)``.

        Pass `levels` if ``compare_levels(steps, settings)`` is already computed. Estimators that do
        not compare by level ignore it.
        """


ESTIMATORS: dict[str, Estimator] = {
    function.__name__: function
    for function in (
        # the paper's method and its baselines
        hgpo,
        gigpo,
        grpo,
        rloo,
        reinforce,
        ppo,
        # the paper's ablations (Table 5)
        hgpo_no_hierarchy,
        hgpo_uniform,
        hgpo_base_group,
        oracle,
        # beyond the paper
        hgpo_leave_one_out,
        hgpo_uncertainty,
    )
}


def find_estimator(name: str) -> Estimator:
    """Return the estimator registered as `name`.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    if name not in ESTIMATORS:
        raise ValueError(f"unknown estimator {name!r}; known: {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]
