"""Random batches of steps and plain-loop reference comparisons for the advantage tests."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hgpo_rllib.advantages import EstimatorSettings, StepArrays

# A trajectory is (task, states, returns). Returns are multiples of 1/4, whose sums are exact, so
# the order of summation never decides whether a deviation is exactly zero.
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
    """Return whether a trajectory counts as won, which is as good as random."""
    return sum(states) % 2 == 0


def following(states: list[int]) -> list[int]:
    """Return the state after each step; the final state may be one that no step starts in."""
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
    """Return the action, 0 or 1, of a step with this return."""
    return round(4 * value) % 2


def nll(value: float) -> float:
    """Return the negative log-probability of the response of a step with this return."""
    return abs(value - 1)


def teacher_nll(value: float) -> float:
    """Return the teacher's negative log-probability of the response of such a step."""
    return abs(value - 2) / 2


def transitions(batch: list[Trajectory]) -> dict[str, list[Any]]:
    """Return more columns of a batch: next anchors, success, actions and log-probabilities."""
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


def from_rewards(
    episodes: Sequence[Sequence[tuple]],
    gamma: float,
    penalty: float | None = None,
    order: Sequence[int] | None = None,
) -> StepArrays:
    """Return steps of one task from tuples that begin with reward and invalid flag, in this order.

    Without a penalty, the flags are ignored.
    """
    table = [(i, t, *step[:2]) for i, steps in enumerate(episodes) for t, step in enumerate(steps)]
    table = [table[i] for i in order or range(len(table))]
    trajectory, time, reward, invalid = zip(*table, strict=True)
    return StepArrays.from_columns(
        task=["task"] * len(table),
        trajectory=trajectory,
        time=time,
        anchor=["room"] * len(table),
        reward=reward,
        gamma=gamma,
        **({} if penalty is None else {"invalid": invalid, "invalid_penalty": penalty}),
    )


def rows(steps: StepArrays, index: NDArray[Any]) -> StepArrays:
    """Return the batch with only these rows, in this order."""
    columns = {field.name: getattr(steps, field.name) for field in fields(steps)}
    return StepArrays(**{k: None if v is None else v[index] for k, v in columns.items()})


def one_step_each(returns: list[float], states: list[int] | None = None) -> StepArrays:
    """Return trajectories of one step each, all of the same task."""
    keys = states or [0] * len(returns)
    return arrays([(0, [s], [r]) for s, r in zip(keys, returns, strict=True)])


def centered(
    batch: list[Trajectory],
    settings: EstimatorSettings,
    key: Callable[[int, list[int], int], Hashable],
) -> list[float]:
    """Return each step's return compared with the steps of equal ``key(task, states, time)``."""
    keys = [key(task, states, t) for task, states, _ in batch for t in range(len(states))]
    returns = [value for _, _, values in batch for value in values]
    return within(keys, returns, settings.normalize).tolist()


def within(
    keys: Sequence[Hashable], values: Sequence[float], normalize: str
) -> NDArray[np.float64]:
    """Return each value compared with the values of the same key."""
    groups = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return np.array(
        [compare(v, groups[key], normalize) for key, v in zip(keys, values, strict=True)]
    )


def compare(value: float, members: list[float], normalize: str) -> float:
    """Return a value minus its group's mean, optionally divided by the standard deviation."""
    if len(set(members)) == 1:
        return 0.0
    return (value - np.mean(members)) / (np.std(members) + 1e-6 if normalize == "mean_std" else 1)


def by_trajectory(batch: list[Trajectory], settings: EstimatorSettings) -> list[float]:
    """Return each step's trajectory return compared with those of its task's trajectories."""
    returns = defaultdict(list)
    for task, _, values in batch:
        returns[task].append(values[0])
    return [
        compare(values[0], returns[task], settings.normalize)
        for task, _, values in batch
        for _ in values
    ]


def history(k: int) -> Callable[[int, list[int], int], Hashable]:
    """Return the key function of level k as the paper defines it."""
    return lambda task, states, t: (task, *states[max(0, t - k) : t + 1])
