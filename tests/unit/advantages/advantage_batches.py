"""Random batches of steps, and comparisons as plain loops, for the tests of the advantages."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hgpo_rllib.advantages import EstimatorSettings, StepArrays

# Trajectories as (task, states, returns). Returns are quarters: sums of them are exact, so that
# the order of a sum never decides whether a deviation is exactly zero.
Trajectory = tuple[int, list[int], list[float]]
QUARTERS = st.integers(-40, 40).map(lambda n: n / 4)
STEPS = st.lists(st.tuples(st.integers(0, 2), QUARTERS), min_size=1, max_size=6)
BATCHES = st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=1, max_size=7).map(
    lambda batch: [(task, [s for s, _ in steps], [r for _, r in steps]) for task, steps in batch]
)
SETTINGS = st.builds(
    EstimatorSettings,
    context_length=st.integers(0, 4),
    weight_alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    normalize=st.sampled_from(["mean", "mean_std"]),
    contexts=st.sampled_from(["paper", "released"]),
    step_weight=st.sampled_from([0.0, 0.5, 1.0]),
    gamma=st.sampled_from([0.5, 0.95, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 1.0]),
    hindsight_smoothing=st.sampled_from([0.0, 0.5, 1.0]),
)


def won(states: list[int]) -> bool:
    """Whether a trajectory counts as won: as good as random."""
    return sum(states) % 2 == 0


def following(states: list[int]) -> list[int]:
    """The state after each step; the final one may be another than all others."""
    return [*states[1:], len(states) % 4]


def columns(batch: list[Trajectory]) -> dict[str, list[Any]]:
    """Return the columns of a batch; a trajectory's return is its first step's."""
    rows = [
        (task, i, t, state, value, returns[0])
        for i, (task, states, returns) in enumerate(batch)
        for t, (state, value) in enumerate(zip(states, returns, strict=True))
    ]
    names = ("task", "trajectory", "time", "anchor", "step_return", "trajectory_return")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def action(value: float) -> int:
    """The action of a step with this return; every other return has the same."""
    return round(4 * value) % 2


def nll(value: float) -> float:
    """The negative log-probability of the response of a step with this return."""
    return abs(value - 1)


def teacher_nll(value: float) -> float:
    """The same by a teacher."""
    return abs(value - 2) / 2


def transitions(batch: list[Trajectory]) -> dict[str, list[Any]]:
    """Return further columns of a batch: actions, where they lead, and whether that was success."""
    return {
        "next_anchor": [state for _, states, _ in batch for state in following(states)],
        "won": [won(states) for _, states, _ in batch for _ in states],
        "action": [action(value) for _, _, returns in batch for value in returns],
        "nll": [nll(value) for _, _, returns in batch for value in returns],
        "teacher_nll": [teacher_nll(value) for _, _, returns in batch for value in returns],
    }


def arrays(batch: list[Trajectory]) -> StepArrays:
    """Return the step arrays of a batch."""
    return StepArrays.from_columns(**columns(batch), **transitions(batch))


def rows(steps: StepArrays, index: NDArray[Any]) -> StepArrays:
    """Return the batch with only these rows, in this order."""
    columns = {field.name: getattr(steps, field.name) for field in fields(steps)}
    return StepArrays(**{k: None if v is None else v[index] for k, v in columns.items()})


def one_step_each(returns: list[float], states: list[int] | None = None) -> StepArrays:
    """Return trajectories of one step, all of one task."""
    keys = states or [0] * len(returns)
    return arrays([(0, [s], [r]) for s, r in zip(keys, returns, strict=True)])


def centered(
    batch: list[Trajectory],
    settings: EstimatorSettings,
    key: Callable[[int, list[int], int], Hashable],
) -> list[float]:
    """Compare each step's return with those of equal ``key(task, states, time)``."""
    steps = [
        (key(task, states, t), value)
        for task, states, returns in batch
        for t, value in enumerate(returns)
    ]
    groups = defaultdict(list)
    for group, value in steps:
        groups[group].append(value)
    return [compare(value, groups[group], settings.normalize) for group, value in steps]


def compare(value: float, members: list[float], normalize: str) -> float:
    """Compare one value with its group."""
    if len(set(members)) == 1:
        return 0.0
    return (value - np.mean(members)) / (np.std(members) + 1e-6 if normalize == "mean_std" else 1)


def by_trajectory(batch: list[Trajectory], settings: EstimatorSettings) -> list[float]:
    """Compare trajectories (their return is their first step's), one value a step."""
    returns = defaultdict(list)
    for task, _, values in batch:
        returns[task].append(values[0])
    return [
        compare(values[0], returns[task], settings.normalize)
        for task, _, values in batch
        for _ in values
    ]


def history(k: int) -> Callable[[int, list[int], int], Hashable]:
    """Return the paper's key of level k."""
    return lambda task, states, t: (task, *states[max(0, t - k) : t + 1])
