"""Random batches of steps, for the tests of the advantages."""

from typing import Any

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


def transitions(batch: list[Trajectory]) -> dict[str, list[Any]]:
    """Return further columns of a batch: where steps lead, and whether that was success."""
    return {
        "next_anchor": [state for _, states, _ in batch for state in following(states)],
        "won": [won(states) for _, states, _ in batch for _ in states],
    }


def arrays(batch: list[Trajectory]) -> StepArrays:
    """Return the step arrays of a batch."""
    return StepArrays.from_columns(**columns(batch), **transitions(batch))


def rows(steps: StepArrays, index: NDArray[Any]) -> StepArrays:
    """Return the batch with only these rows, in this order."""
    return StepArrays(
        task=steps.task[index],
        trajectory=steps.trajectory[index],
        time=steps.time[index],
        anchor=steps.anchor[index],
        step_return=steps.step_return[index],
        trajectory_return=None
        if steps.trajectory_return is None
        else steps.trajectory_return[index],
        value=None if steps.value is None else steps.value[index],
        next_anchor=None if steps.next_anchor is None else steps.next_anchor[index],
        won=None if steps.won is None else steps.won[index],
        penalty=None if steps.penalty is None else steps.penalty[index],
    )


def one_step_each(returns: list[float], states: list[int] | None = None) -> StepArrays:
    """Return trajectories of one step, all of one task."""
    keys = states or [0] * len(returns)
    return arrays([(0, [s], [r]) for s, r in zip(keys, returns, strict=True)])
