"""Compare every step with its group at each depth of shared history; HGPO combines these."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.advantages.contexts import context_levels
from hgpo_rllib.advantages.groups import group_advantage
from hgpo_rllib.advantages.settings import EstimatorSettings
from hgpo_rllib.advantages.steps import StepArrays


@dataclass(frozen=True)
class Level:
    """Groups of a batch's steps at one depth; arrays have shape ``(steps,)``."""

    group: NDArray[np.int64]
    """Dense group ids; -1 for a step without a group at this depth."""
    size: NDArray[np.int64]
    """Size of each step's group; 0 for a step without a group."""
    advantage: NDArray[np.float64]
    """Advantage of each step in its group (Eq. 5); 0 for a step without a group."""


def compare_levels(steps: StepArrays, settings: EstimatorSettings) -> Iterator[Level]:
    """Yield the levels k = 0, 1, …, K one at a time, so that only one has to be in memory.

    Reads context_length, normalize, contexts.
    """
    for group in context_levels(steps, settings.context_length, settings.contexts):
        advantage, size = group_advantage(group, steps.step_return, settings.normalize)
        yield Level(group, size, advantage)


def step_level(
    steps: StepArrays, settings: EstimatorSettings, levels: Iterable[Level] | None = None
) -> NDArray[np.float64]:
    """Compute Eq. 2 (level 0): compare each step's return with steps of its task and state.

    Reads normalize.
    """
    return next(iter(compare_levels(steps, settings) if levels is None else levels)).advantage
