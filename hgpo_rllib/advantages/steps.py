"""The arrays that advantage estimators read, and the return of a step."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class StepArrays:
    """Steps of one batch, one entry a step; every array has shape ``(steps,)``.

    Steps of one trajectory need not be adjacent or in time order.
    """

    task: NDArray[np.int64]
    """Group of the step: trajectories of one group play the same task from the same start."""
    trajectory: NDArray[np.int64]
    """Trajectory of the step."""
    time: NDArray[np.int64]
    """Index of the step in its trajectory: 0, 1, 2, … without gaps."""
    anchor: NDArray[np.int64]
    """Interned state key (the observation text in the paper): equal ids mean equal states."""
    step_return: NDArray[np.float64]
    """Discounted return from this step on, the invalid-action penalty included."""

    def __post_init__(self) -> None:
        lengths = {name: len(value) for name, value in vars(self).items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"step arrays differ in length: {lengths}")
        bad = np.flatnonzero(~np.isfinite(self.step_return))
        if len(bad):
            raise ValueError(f"row {bad[0]}: step_return is {self.step_return[bad[0]]}")
        order = self.time_order()
        first = np.r_[True, np.diff(self.trajectory[order]) != 0][: len(order)]
        expected = np.arange(len(order)) - np.maximum.accumulate(
            np.where(first, np.arange(len(order)), 0)
        )
        wrong = np.flatnonzero(self.time[order] != expected)
        if len(wrong):
            row = int(order[wrong[0]])
            raise ValueError(
                f"row {row}: trajectory {self.trajectory[row]} has time {self.time[row]} "
                f"where {expected[wrong[0]]} was expected (a duplicate or a gap)"
            )
        moved = np.flatnonzero(~first & (np.diff(self.task[order], prepend=0) != 0))
        if len(moved):
            row = int(order[moved[0]])
            raise ValueError(f"row {row}: trajectory {self.trajectory[row]} is in two tasks")

    def __len__(self) -> int:
        return len(self.step_return)

    def time_order(self) -> NDArray[np.intp]:
        """Row indices sorted by trajectory, then time."""
        return np.lexsort((self.time, self.trajectory))

    @classmethod
    def from_trajectories(
        cls,
        tasks: Sequence[Hashable],
        anchors: Sequence[Sequence[Hashable]],
        returns: Sequence[ArrayLike],
    ) -> "StepArrays":
        """Flatten trajectories (in order) into step arrays.

        Args:
            tasks: group key of each trajectory.
            anchors: state keys of each trajectory, one a step.
            returns: step returns of each trajectory, one a step.
        """
        lengths = [len(trajectory) for trajectory in anchors]
        return cls(
            task=np.repeat(intern(tasks), lengths),
            trajectory=np.repeat(np.arange(len(lengths)), lengths),
            time=np.concatenate([np.arange(n) for n in lengths] or [np.empty(0, np.int64)]),
            anchor=intern([key for trajectory in anchors for key in trajectory]),
            step_return=np.concatenate(
                [np.asarray(r, np.float64) for r in returns] or [np.empty(0)]
            ),
        )


def intern(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Number distinct keys 0, 1, 2, … in order of first appearance."""
    ids: dict[Hashable, int] = {}
    return np.fromiter((ids.setdefault(key, len(ids)) for key in keys), np.int64, len(keys))


def step_returns(
    rewards: ArrayLike, invalid: ArrayLike, gamma: float, invalid_penalty: float
) -> NDArray[np.float64]:
    """Discounted return of every step of one trajectory, minus the penalty of an invalid step.

    ``R_t = sum_j gamma^j r_{t+j} - invalid_penalty * invalid_t``: the penalty is taken after
    discounting, so it falls on the invalid step alone and never on the steps before it.

    Args:
        rewards: environment rewards, shape ``(steps,)``.
        invalid: whether each step's action was invalid, shape ``(steps,)``.
    """
    rewards = np.asarray(rewards, np.float64)
    returns = np.empty_like(rewards)
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * running
        returns[t] = running
    return returns - invalid_penalty * np.asarray(invalid, np.float64)
