"""Step returns and HGPO advantages: against recordings, against the definitions, invariants."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hgpo_rllib.advantages import StepArrays, hgpo_advantages, step_returns

RECORDINGS = Path(__file__).parents[3] / "shared/parity/hgpo_vectors.json"
CASES = json.loads(RECORDINGS.read_text())["cases"] if RECORDINGS.is_file() else []

quickly = settings(max_examples=60, deadline=None, derandomize=True)
# Trajectories as (task, states, returns). Returns are quarters: sums of them are exact, so that
# the order of a sum never decides whether a deviation is exactly zero.
Trajectory = tuple[int, list[int], list[float]]
QUARTERS = st.integers(-40, 40).map(lambda n: n / 4)
STEPS = st.lists(st.tuples(st.integers(0, 2), QUARTERS), min_size=1, max_size=6)
BATCHES = st.lists(st.tuples(st.integers(0, 2), STEPS), min_size=1, max_size=7).map(
    lambda batch: [(task, [s for s, _ in steps], [r for _, r in steps]) for task, steps in batch]
)
SETTINGS = st.fixed_dictionaries(
    {
        "context_length": st.integers(0, 4),
        "weight_alpha": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "normalize": st.sampled_from(["mean", "mean_std"]),
        "contexts": st.sampled_from(["paper", "released"]),
    }
)


def arrays(batch: list[Trajectory]) -> StepArrays:
    """Return the step arrays of a batch."""
    return StepArrays.from_trajectories(*map(list, zip(*batch, strict=True)))


def rows(steps: StepArrays, index: NDArray[Any]) -> StepArrays:
    """Return the batch with only these rows, in this order."""
    return StepArrays(**{name: value[index] for name, value in vars(steps).items()})


def one_step_each(returns: list[float], states: list[int] | None = None) -> StepArrays:
    """Return trajectories of one step, all of one task."""
    keys = states or [0] * len(returns)
    return arrays([(0, [s], [r]) for s, r in zip(keys, returns, strict=True)])


def by_definition(batch: list[Trajectory], options: dict[str, Any]) -> list[float]:
    """Return the advantages straight from the definitions: groups are lists under tuples."""
    groups: dict[tuple, list[float]] = defaultdict(list)
    keys: list[list[tuple]] = []  # of each step, those of its levels
    flat: list[float] = []
    for task, states, returns in batch:
        for t, value in enumerate(returns):
            levels = range(options["context_length"] + 1)
            if options["contexts"] == "released":
                levels = range(min(t, options["context_length"]) + 1)
            keys.append([(task, k, *states[max(0, t - k) : t + 1]) for k in levels])
            flat.append(value)
            for key in keys[-1]:
                groups[key].append(value)
    offset = 1 if options["contexts"] == "paper" else 2
    result = []
    for own, value in zip(keys, flat, strict=True):
        numerator = denominator = 0.0
        for k, key in enumerate(own):
            members = groups[key]
            mean = sum(members) / len(members)
            advantage = value - mean
            if options["normalize"] == "mean_std":
                variance = sum((m - mean) ** 2 for m in members) / len(members)
                advantage /= variance**0.5 + 1e-6
            if len(set(members)) > 1 and advantage != 0:
                weight = (k + offset) ** options["weight_alpha"]
                numerator += weight * advantage
                denominator += weight
        result.append(numerator / denominator if denominator else 0.0)
    return result


@pytest.mark.skipif(not CASES, reason="the recorded vectors are not beside this checkout")
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"K{c['K']}-{c['contexts']}-{c['norm']}")
def test_recordings(case: dict[str, Any]) -> None:
    """Returns, advantages and the share of steps with company equal the recorded ones."""
    group = case["group"]
    returns = [
        step_returns(t["rewards"], t["invalid"], case["gamma"], case["invalid_penalty"])
        for t in group
    ]
    for ours, recorded in zip(returns, case["step_returns"], strict=True):
        np.testing.assert_allclose(ours, recorded, rtol=0, atol=1e-12)
    steps = arrays([(0, t["states"], r) for t, r in zip(group, returns, strict=True)])
    options = (case["K"], case["alpha"], case["norm"])
    estimate = hgpo_advantages(steps, *options, contexts=case["contexts"])
    recorded = np.concatenate(case["advantages"])
    np.testing.assert_allclose(estimate.advantage, recorded, rtol=0, atol=1e-12)
    # The recorded share is of the paper's groups in both modes.
    sizes = hgpo_advantages(steps, *options, contexts="paper").group_size
    np.testing.assert_allclose((sizes > 1).mean(axis=1), case["utilization"], atol=1e-12)


@quickly
@given(BATCHES, SETTINGS)
def test_definition(batch: list[Trajectory], options: dict[str, Any]) -> None:
    """Random batches get what the definitions say."""
    got = hgpo_advantages(arrays(batch), **options).advantage
    np.testing.assert_allclose(got, by_definition(batch, options), rtol=0, atol=1e-9)


@quickly
@given(BATCHES, SETTINGS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(batch, options, random) -> None:
    """Shuffling the rows permutes advantages, levels and sizes."""
    steps = arrays(batch)
    order = np.array(random.sample(range(len(steps)), len(steps)))
    before = hgpo_advantages(steps, **options)
    after = hgpo_advantages(rows(steps, order), **options)
    np.testing.assert_allclose(after.advantage, before.advantage[order], atol=1e-9)
    np.testing.assert_allclose(after.level_advantage, before.level_advantage[:, order], atol=1e-9)
    np.testing.assert_array_equal(after.group_size, before.group_size[:, order])


@quickly
@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=60),
    st.one_of(st.floats(-1e6, 1e6), st.integers(0, 50).map(lambda t: 10 * 0.95**t)),
    SETTINGS,
)
def test_equal_returns_give_exactly_zero(states, value: float, options) -> None:
    """No rounding noise of a mean reaches an advantage when all returns are equal."""
    estimate = hgpo_advantages(one_step_each([value] * len(states), states), **options)
    assert not estimate.advantage.any()
    assert not estimate.level_advantage.any()


@pytest.mark.parametrize("normalize", ["mean", "mean_std"])
def test_equal_discounted_returns_give_exactly_zero(normalize) -> None:
    """The same for each group size and discount that a run meets."""
    for size in range(2, 61):
        for t in range(50):
            steps = one_step_each([10 * 0.95**t] * size)
            assert not hgpo_advantages(steps, 2, normalize=normalize).advantage.any(), (size, t)


@quickly
@given(BATCHES, SETTINGS, st.integers(-400, 400).map(lambda n: n / 4))
def test_a_constant_does_not_matter(batch, options, constant: float) -> None:
    """Adding a constant to all returns of task 0 leaves all advantages."""
    steps = arrays(batch)
    first = steps.task == 0
    shifted = replace(steps, step_return=steps.step_return + np.where(first, constant, 0.0))
    before, after = (hgpo_advantages(s, **options).advantage for s in (steps, shifted))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-9)


@quickly
@given(BATCHES, SETTINGS, st.sampled_from([-8.0, -1.0, 0.5, 3.0, 1024.0]))
def test_a_scale(batch, options, scale: float) -> None:
    """Scaled returns scale the mean form; of the other only a negative sign remains."""
    steps = arrays(batch)
    scaled = replace(steps, step_return=scale * steps.step_return)
    before, after = (hgpo_advantages(s, **options).advantage for s in (steps, scaled))
    if options["normalize"] == "mean":
        np.testing.assert_allclose(after, scale * before, rtol=1e-9, atol=1e-9)
    else:  # up to the 1e-6 beside the standard deviation
        np.testing.assert_allclose(after, np.sign(scale) * before, rtol=0, atol=1e-3)


@quickly
@given(BATCHES, SETTINGS)
def test_other_tasks_do_not_matter(batch, options) -> None:
    """A task alone gets the advantages that it gets among others."""
    steps = arrays(batch)
    together = hgpo_advantages(steps, **options).advantage
    for task in np.unique(steps.task):
        own = np.flatnonzero(steps.task == task)
        alone = hgpo_advantages(rows(steps, own), **options).advantage
        np.testing.assert_allclose(together[own], alone, rtol=0, atol=1e-9)


@quickly
@given(BATCHES, SETTINGS)
def test_groups_of_one_give_nothing(batch, options) -> None:
    """A level without company has advantage 0; a step without any company has advantage 0."""
    estimate = hgpo_advantages(arrays(batch), **options)
    assert not estimate.level_advantage[estimate.group_size < 2].any()
    assert not estimate.advantage[(estimate.group_size < 2).all(axis=0)].any()
    assert (np.diff(estimate.group_size, axis=0) <= 0).all()  # deeper groups are parts


@quickly
@given(BATCHES, st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from(["paper", "released"]))
def test_depth_zero_is_plain_grouping_by_state(batch, alpha: float, contexts) -> None:
    """With K = 0 the advantage is the deviation from the mean over task and state."""
    steps = arrays(batch)
    got = hgpo_advantages(steps, 0, alpha, "mean", contexts).advantage
    for task, state in {*zip(steps.task, steps.anchor, strict=True)}:
        group = (steps.task == task) & (steps.anchor == state)
        values = steps.step_return[group]
        np.testing.assert_allclose(got[group], values - values.mean(), rtol=0, atol=1e-9)


def test_by_hand() -> None:
    """Two histories of one state: shared state, split by the state before, by whole prefixes."""
    batch: list[Trajectory] = [(0, [0, 9], [0.0, 8.0]), (0, [0, 9], [0.0, 4.0]), (0, [9], [0.0])]
    # State 9: mean 4, so 4, 0 and -4. After state 0: mean 6, so 2 and -2; the third is alone.
    # (1 * 4 + 2 * 2) / 3; the exact zero of level 0 is left out: -2; (1 * -4) / 1.
    got = hgpo_advantages(arrays(batch), 1, 1.0, "mean").advantage
    np.testing.assert_allclose(got, [0, 8 / 3, 0, -2, -4])
    # Weights 2 and 3 instead of 1 and 2.
    got = hgpo_advantages(arrays(batch), 1, 1.0, "mean", "released").advantage
    np.testing.assert_allclose(got, [0, (2 * 4 + 3 * 2) / 5, 0, -2, -4])


def test_an_empty_batch() -> None:
    """No steps, no advantages, no error."""
    estimate = hgpo_advantages(StepArrays.from_trajectories([], [], []), 2)
    assert estimate.advantage.shape == (0,)
    assert estimate.group_size.shape == (3, 0)


def test_the_penalty_falls_on_the_invalid_step_alone() -> None:
    """It is taken after discounting: 4 = 0.5 * 8, 2 = 0.25 * 8."""
    rewards, invalid = [0.0, 0.0, 8.0], [False, True, False]
    np.testing.assert_array_equal(step_returns(rewards, invalid, 0.5, 0.25), [2.0, 3.75, 8.0])


@quickly
@given(st.lists(st.tuples(QUARTERS, st.booleans()), max_size=12), st.floats(0.1, 1))
def test_returns_by_definition(steps: list[tuple[float, bool]], gamma: float) -> None:
    """Each return is the discounted sum of what follows, less the step's own penalty."""
    rewards = [reward for reward, _ in steps]
    got = step_returns(rewards, [bad for _, bad in steps], gamma, 0.1)
    expected = [
        sum(gamma**j * r for j, r in enumerate(rewards[t:])) - 0.1 * bad
        for t, (_, bad) in enumerate(steps)
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def table(**changes: list[float]) -> dict[str, NDArray[Any]]:
    """Return the columns of two trajectories with two steps each, some replaced."""
    columns: dict[str, list[float]] = {
        "task": [0, 0, 1, 1],
        "trajectory": [0, 0, 1, 1],
        "time": [0, 1, 0, 1],
        "anchor": [0, 1, 0, 1],
        "step_return": [1.0, 2.0, 3.0, 4.0],
    }
    return {name: np.array(changes.get(name, value)) for name, value in columns.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_return": [1.0, 2.0, np.nan, 4.0]}, "^row 2: step_return is nan$"),
        ({"step_return": [1.0, np.inf, 3.0, 4.0]}, "^row 1: step_return is inf$"),
        ({"time": [0, 0, 0, 1]}, "^row 1: trajectory 0 has time 0 where 1 was expected"),
        ({"time": [0, 1, 0, 2]}, "^row 3: trajectory 1 has time 2 where 1 was expected"),
        ({"time": [0, 1, 1, 2]}, "^row 2: trajectory 1 has time 1 where 0 was expected"),
        ({"task": [0, 0, 1, 0]}, "^row 3: trajectory 1 is in two tasks$"),
        ({"task": [0, 1, 1, 1]}, "^row 1: trajectory 0 is in two tasks$"),
        ({"anchor": [0, 1, 0]}, "differ in length: .*'anchor': 3"),
    ],
)
def test_damaged_batches_are_refused(changes: dict[str, list[float]], message: str) -> None:
    """The error names the row, or the array that is too short."""
    StepArrays(**table())
    with pytest.raises(ValueError, match=message):
        StepArrays(**table(**changes))


def test_a_negative_depth_is_refused() -> None:
    """The error names the argument and its value."""
    with pytest.raises(ValueError, match="context_length must be 0 or more, got -1"):
        hgpo_advantages(one_step_each([1.0, 2.0]), -1)
