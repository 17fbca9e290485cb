"""Step arrays: returns, ids of any kind, and rejected input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hgpo_rllib.advantages import StepArrays
from tests.unit.advantages.advantage_batches import BATCHES, QUARTERS, arrays, from_rewards, rows

EPISODES = st.lists(
    st.lists(st.tuples(QUARTERS, st.booleans()), min_size=1, max_size=8), min_size=1, max_size=5
)


def test_the_penalty_falls_on_the_invalid_step_alone() -> None:
    """The penalty is subtracted after discounting, so 3.75 = 0.5 * 8 - 0.25 but 2 = 0.25 * 8."""
    steps = from_rewards([[(0.0, False), (0.0, True), (8.0, False)]], 0.5, 0.25)
    np.testing.assert_array_equal(steps.step_return, [2.0, 3.75, 8.0])
    assert steps.trajectory_return is not None
    np.testing.assert_array_equal(steps.trajectory_return, [7.75] * 3)


def test_discount_and_penalty_by_default() -> None:
    """The defaults are those of the paper: a discount of 0.95 and a penalty of 0.1."""
    steps = StepArrays.from_columns(
        [0, 0], [0, 0], [0, 1], [0, 0], reward=[0.0, 10.0], invalid=[True, False]
    )
    np.testing.assert_allclose(steps.step_return, [9.4, 10.0])
    np.testing.assert_allclose(steps.require("trajectory_return"), [9.9, 9.9])


@given(EPISODES, st.floats(0.1, 1), st.randoms(use_true_random=False))
def test_returns_by_definition(episodes, gamma: float, random) -> None:
    """A return is the discounted sum of rewards from its step on, less the step's own penalty."""
    expected = [
        (
            sum(gamma**j * r for j, (r, _) in enumerate(steps[t:])) - 0.1 * steps[t][1],
            sum(reward - 0.1 * bad for reward, bad in steps),
        )
        for steps in episodes
        for t in range(len(steps))
    ]
    order = random.sample(range(len(expected)), len(expected))
    got = from_rewards(episodes, gamma, 0.1, order)
    assert got.trajectory_return is not None
    both = np.stack([got.step_return, got.trajectory_return], axis=1)
    np.testing.assert_allclose(both, [expected[i] for i in order], rtol=1e-9, atol=1e-9)


@given(BATCHES, st.randoms(use_true_random=False))
def test_previous_steps(batch, random) -> None:
    """A row's previous row is the preceding step of its trajectory, in any order of rows."""
    steps = arrays(batch)
    steps = rows(steps, np.array(random.sample(range(len(steps)), len(steps))))
    for row, before in enumerate(steps.previous):
        if before < 0:
            assert steps.time[row] == 0
        else:
            assert steps.trajectory[before] == steps.trajectory[row]
            assert steps.time[before] == steps.time[row] - 1


def test_an_empty_batch() -> None:
    """A batch without steps is accepted."""
    for returns in ({"step_return": []}, {"reward": []}):
        steps = StepArrays.from_columns([], [], [], [], **returns)
        assert len(steps) == 0
        assert steps.step_return.shape == (0,)


def test_ids_of_any_kind() -> None:
    """Ids may be integers, strings, tuples or mixtures of them; equal keys get equal ids."""
    steps = StepArrays.from_columns(
        task=np.array([70, 70, -3]),
        trajectory=["a", "a", "b"],
        time=np.array([0, 1, 0], np.int8),
        anchor=[("room", 1), "room", ("room", 1)],
        action=np.array(["look", 1, 1], object),
        step_return=[1, 2, 3],
    )
    assert steps.task[0] == steps.task[1] != steps.task[2]
    assert steps.anchor[0] == steps.anchor[2] != steps.anchor[1]
    assert steps.require("action").tolist() == [0, 1, 1]
    assert steps.step_return.dtype == np.float64
    assert steps.trajectory_return is None


def table(**changes: object) -> dict[str, object]:
    """Return the columns of two trajectories with two steps each, some replaced."""
    columns: dict[str, object] = {
        "task": [0, 0, 1, 1],
        "trajectory": [0, 0, 1, 1],
        "time": [0, 1, 0, 1],
        "anchor": ["a", "b", "a", "b"],
        "step_return": [1.0, 2.0, 3.0, 4.0],
    }
    return {name: value for name, value in (columns | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_return": [1.0, 2.0, np.nan, 4.0]}, "^row 2: step_return is nan$"),
        ({"step_return": [1.0, np.inf, 3.0, 4.0]}, "^row 1: step_return is inf$"),
        ({"step_return": None, "reward": [0, 0, 0, -np.inf]}, "^row 3: reward is -inf$"),
        ({"value": [0, np.nan, 0, 0]}, "^row 1: value is nan$"),
        ({"time": [0, 0, 0, 1]}, r"^rows 0 and 1: the same trajectory and time \(0\)$"),
        ({"time": [1, 1, 0, 1], "step_return": [1.0] * 4}, "^row 0: .* begins with time 1, not 0"),
        ({"time": [0, 1, 0, 2]}, "^row 3: time 2 comes after 0: a step is missing$"),
        ({"time": [1, 0, 3, 1], "trajectory": [0, 0, 0, 0]}, "^rows 0 and 3: the same trajectory"),
        ({"time": [0, 1, -1, 0]}, "^row 2: time is -1, below 0$"),
        ({"time": [0.0, 1.0, 0.0, 1.0]}, "^time must hold integers, not float64$"),
        ({"task": [0, 0, 1, 0]}, "^rows 2 and 3: one trajectory, but task is 1 and 0$"),
        ({"task": [0, 1, 1, 1]}, "^rows 0 and 1: one trajectory, but task is 0 and 1$"),
        ({"trajectory_return": [5, 6, 1, 1]}, "^rows 0 and 1: .* trajectory_return is 5.0 and 6.0"),
        ({"anchor": ["a", "b", "a"]}, "differ in length: .*'anchor': 3"),
        ({"next_anchor": ["b", "c"]}, "differ in length: .*'next_anchor': 2"),
        ({"step_return": None, "reward": [0.0] * 3}, "differ in length: .*'reward': 3"),
        (
            {"step_return": None, "reward": [0.0] * 4, "invalid": [True]},
            "differ in length: .*'invalid': 1",
        ),
        ({"step_return": None}, "^give either step_return or reward$"),
        ({"reward": [0.0] * 4}, "^give either step_return or reward$"),
        ({"invalid": [False] * 4}, "^invalid goes with reward"),
        (
            {"step_return": None, "reward": [0.0] * 4, "trajectory_return": [0.0] * 4},
            "^trajectory_return goes with step_return",
        ),
    ],
)
def test_damaged_batches_are_refused(changes: dict[str, object], message: str) -> None:
    """The error names the row or the column."""
    StepArrays.from_columns(**table())
    with pytest.raises(ValueError, match=message):
        StepArrays.from_columns(**table(**changes))


def test_arrays_of_ones_own_are_checked_too() -> None:
    """The constructor makes the same checks as `from_columns`."""

    def ids(*values: int) -> NDArray[np.int64]:
        return np.array(values)

    with pytest.raises(ValueError, match="row 1: task is -1, below 0"):
        StepArrays(ids(0, -1), ids(0, 1), ids(0, 0), ids(0, 0), np.zeros(2))
    with pytest.raises(ValueError, match="differ in length"):
        StepArrays(ids(0, 0), ids(0, 1), ids(0, 0), ids(0, 0), np.zeros(3))
