"""Input arrays of the advantage estimators, and returns of steps and trajectories."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NONE = -1  # "no row" and "no group" in integer arrays

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Keys = Sequence[Hashable] | NDArray[Any]
OPTIONAL = {  # arrays that some estimators need, and what they contain
    "trajectory_return": "returns of trajectories",
    "value": "values of a critic",
    "next_anchor": "states after steps",
    "won": "outcomes of trajectories",
    "action": "actions",
    "nll": "negative log-probabilities of responses",
    "teacher_nll": "negative log-probabilities of a teacher",
}


@dataclass(frozen=True)
class StepArrays:
    """Steps of one batch, one entry per step; every array has shape ``(steps,)``.

    Rows may be in any order. `from_columns` builds the arrays from ids of any kind; the
    constructor only checks them.

    Raises:
        ValueError: arrays of different lengths, a value that is not finite, a negative id, two rows
            of one trajectory with the same time, a missing step, a `next_anchor` that is not the
            next step's anchor, or a trajectory in two tasks or parents, with two returns or two
            outcomes. The message names the row.
    """

    task: Ints
    """Task of the step, 0, 1, …; trajectories of the same task are compared."""
    trajectory: Ints
    """Trajectory of the step, 0, 1, …"""
    time: Ints
    """Index of the step in its trajectory: 0, 1, 2, … without gaps."""
    anchor: Ints
    """Interned state key (the observation text in the paper); equal ids mean equal states."""
    step_return: Floats
    """Discounted return from this step on, including the penalty of an invalid action."""
    trajectory_return: Floats | None = None
    """Undiscounted return of the step's trajectory, equal on all its steps; None if unknown."""
    value: Floats | None = None
    """The critic's estimate of its target, which with λ = 1 is the step return; None without a
    critic. See `value_targets` in `hgpo_rllib.advantages.baselines`."""
    next_anchor: Ints | None = None
    """State key after the step, with the same ids as `anchor`; None if unknown."""
    won: NDArray[np.bool_] | None = None
    """Whether the step's trajectory ended with success; None if unknown."""
    penalty: Floats | None = None
    """Penalty of the step's action that `step_return` contains; None if unknown."""
    action: Ints | None = None
    """Action of the step; equal ids mean equal actions. None if unknown."""
    nll: Floats | None = None
    """Mean negative log-probability of the tokens of the step's response when they were sampled, in
    nats; None if unknown."""
    teacher_nll: Floats | None = None
    """As `nll`, by a teacher: the policy with text about the whole episode in its prompt. None
    without a teacher."""
    parent: Ints | None = None
    """Task of the step if `task` distinguishes strategies: trajectories with equal `parent` play
    the same task, those with equal `task` also follow the same strategy. None without strategies.
    """

    def __post_init__(self) -> None:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        _check_lengths(columns)
        for name, column in columns.items():
            if column is None:
                continue
            if column.dtype.kind == "f":
                _check_finite(name, column)
            elif len(column) and column.min() < 0:
                raise ValueError(f"row {column.argmin()}: {name} is {column.min()}, below 0")
        self._check_trajectories()

    def __len__(self) -> int:
        return len(self.step_return)

    @property
    def penalties(self) -> Floats | float:
        """`penalty`, or 0 if it is unknown."""
        return 0.0 if self.penalty is None else self.penalty

    def require(self, name: str) -> NDArray[Any]:
        """Return an optional array.

        Raises:
            ValueError: it is None.
        """
        column: NDArray[Any] | None = getattr(self, name)
        if column is None:
            raise ValueError(f"no {OPTIONAL[name]}: the steps need {name}")
        return column

    @cached_property
    def time_order(self) -> NDArray[np.intp]:
        """Rows sorted by trajectory, then time."""
        return np.lexsort((self.time, self.trajectory))

    @cached_property
    def by_time(self) -> list[NDArray[np.intp]]:
        """Rows of all trajectories at time 0, 1, …"""
        order = np.argsort(self.time, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.time[order])) + 1)

    @cached_property
    def previous(self) -> Ints:
        """Row of the previous step in the trajectory; -1 for first steps."""
        previous = np.full(len(self), NONE, np.int64)
        order = self.time_order
        same = np.flatnonzero(np.diff(self.trajectory[order]) == 0)
        previous[order[same + 1]] = order[same]
        return previous

    @cached_property
    def first_steps(self) -> tuple[NDArray[np.intp], Ints]:
        """Rows of first steps, and for each step the index of its trajectory in them."""
        rows = np.flatnonzero(self.time == 0)
        index = np.zeros(self.trajectory.max(initial=NONE) + 1, np.int64)
        index[self.trajectory[rows]] = np.arange(len(rows))
        return rows, index[self.trajectory]

    def _check_trajectories(self) -> None:
        expected = np.where(self.previous == NONE, 0, self.time[self.previous] + 1)
        for row in self.time_order[(self.time != expected)[self.time_order]]:
            before, time = self.previous[row], self.time[row]
            if before == NONE:
                raise ValueError(f"row {row}: its trajectory begins with time {time}, not 0")
            if time == self.time[before]:
                raise ValueError(f"rows {before} and {row}: the same trajectory and time ({time})")
            raise ValueError(
                f"row {row}: time {time} comes after {self.time[before]}: a step is missing"
            )
        later = np.flatnonzero(self.previous != NONE)
        for name in ("task", "trajectory_return", "won", "parent"):
            column = getattr(self, name)
            if column is None:
                continue
            for row in later[column[later] != column[self.previous[later]]]:
                before = self.previous[row]
                raise ValueError(
                    f"rows {before} and {row}: one trajectory, but {name} is {column[before]} "
                    f"and {column[row]}"
                )
        if self.next_anchor is not None:
            after = self.next_anchor[self.previous[later]]
            for row in later[after != self.anchor[later]]:
                before = self.previous[row]
                raise ValueError(f"rows {before} and {row}: next_anchor is not the next anchor")

    @classmethod
    def from_columns(
        cls,
        task: Keys,
        trajectory: Keys,
        time: ArrayLike,
        anchor: Keys,
        *,
        step_return: ArrayLike | None = None,
        trajectory_return: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        invalid: ArrayLike | None = None,
        gamma: float = 0.95,
        invalid_penalty: float = 0.1,
        value: ArrayLike | None = None,
        next_anchor: Keys | None = None,
        won: ArrayLike | None = None,
        action: Keys | None = None,
        nll: ArrayLike | None = None,
        teacher_nll: ArrayLike | None = None,
        parent: Keys | None = None,
    ) -> "StepArrays":
        """Build the arrays from columns with one entry per step, in any row order.

        Pass `step_return`, or `reward` (and `invalid`) to compute the returns:

        - step return: ``sum_j gamma^j reward_{t+j} - invalid_penalty * invalid_t``. The penalty is
          subtracted after discounting, so it affects only the invalid step.
        - trajectory return: ``sum_t (reward_t - invalid_penalty * invalid_t)``, undiscounted.

        Args:
            task: hashable ids, as `trajectory`, `anchor`, `next_anchor`, `action` and `parent`.
            trajectory: ids that are unique in the whole batch, not only within a task.
            time: integers, 0 for the first step of a trajectory.
            anchor: state key of each step.
            step_return: returns from each step on, including penalties.
            trajectory_return: return of each step's trajectory; only with `step_return`.
            reward: environment reward of each step.
            invalid: whether each step's action was invalid; None: all were valid.
            gamma: discount of the step return; that of the estimator's settings.
            invalid_penalty: subtracted from the return of an invalid step.
            value, next_anchor, won, action, nll, teacher_nll, parent: optional, see the fields of
                the class.

        Raises:
            ValueError: see the class; also for columns that exclude each other.
        """
        if (step_return is None) == (reward is None):
            raise ValueError("give either step_return or reward")
        if reward is None and invalid is not None:
            raise ValueError("invalid goes with reward: a step_return has its penalties in it")
        if reward is not None and trajectory_return is not None:
            raise ValueError("trajectory_return goes with step_return: reward determines it")
        times = np.asarray(time)
        if len(times) and times.dtype.kind not in "iu":
            raise ValueError(f"time must hold integers, not {times.dtype}")
        checked = {"time": time, "reward": reward, "invalid": invalid}
        _check_lengths(checked | {"anchor": anchor, "next_anchor": next_anchor})
        if reward is not None:
            _check_finite("reward", _floats(reward))
        if next_anchor is None:
            anchors, following = intern(anchor), None
        else:
            anchors, following = np.split(intern([*anchor, *next_anchor]), 2)
        steps = cls(
            task=intern(task),
            trajectory=intern(trajectory),
            time=times.astype(np.int64),
            anchor=anchors,
            # Rewards for now: the sums below need the steps in order.
            step_return=_floats(step_return if reward is None else reward),
            trajectory_return=None if trajectory_return is None else _floats(trajectory_return),
            value=None if value is None else _floats(value),
            next_anchor=following,
            won=None if won is None else np.asarray(won, bool),
            action=None if action is None else intern(action),
            nll=None if nll is None else _floats(nll),
            teacher_nll=None if teacher_nll is None else _floats(teacher_nll),
            parent=None if parent is None else intern(parent),
        )
        if reward is None:
            return steps
        rewards = steps.step_return
        penalty = invalid_penalty * _floats(np.zeros(len(steps)) if invalid is None else invalid)
        totals = np.bincount(steps.trajectory, rewards - penalty).astype(np.float64)
        return replace(
            steps,
            step_return=discounted_sums(steps, rewards, gamma) - penalty,
            trajectory_return=totals[steps.trajectory],
            penalty=penalty,
        )


def discounted_sums(steps: StepArrays, values: Floats, factor: Floats | float) -> Floats:
    """Return ``y_t = values_t + factor_t * y_{t+1}`` along each trajectory, shape ``(steps,)``."""
    result, factors = values.astype(np.float64), np.broadcast_to(factor, values.shape)
    for rows in reversed(steps.by_time[1:]):  # all trajectories at once, backwards in time
        before = steps.previous[rows]
        result[before] += factors[before] * result[rows]
    return result


def step_rewards(steps: StepArrays, gamma: float) -> Floats:
    """Return the rewards without penalties, shape ``(steps,)``.

    They are recovered from the step returns, whose discount is `gamma`.
    """
    returns = steps.step_return + steps.penalties
    return returns - gamma * next_values(steps, returns, last=0.0)


def next_values(steps: StepArrays, values: NDArray[Any], last: Floats | float) -> Floats:
    """Return the value of each step's next step, shape ``(steps,)``; `last` for last steps."""
    result = np.full(values.shape, last, np.float64)
    later = np.flatnonzero(steps.previous != NONE)
    result[steps.previous[later]] = values[later]
    return result


def intern(keys: Keys) -> Ints:
    """Map distinct keys to ids 0, 1, 2, …"""
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu":
        return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
    ids: defaultdict[Hashable, int] = defaultdict()
    ids.default_factory = ids.__len__  # a new key gets the number of keys before it
    return np.fromiter(map(ids.__getitem__, keys), np.int64, len(keys))


def intern_pairs(a: Ints, b: Ints) -> Ints:
    """Map distinct pairs (a_i, b_i), where a >= 0 and b >= -1, to ids 0, 1, 2, …"""
    width = b.max(initial=NONE) + 2
    return np.unique(a * width + b, return_inverse=True)[1]


def _floats(column: Any) -> Floats:
    return np.asarray(column, np.float64)


def _check_lengths(columns: dict[str, Any]) -> None:
    lengths = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns differ in length: {lengths}")


def _check_finite(name: str, column: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        raise ValueError(f"row {bad[0]}: {name} is {column[bad[0]]}")
