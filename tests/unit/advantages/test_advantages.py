"""HGPO advantages, tested against recordings, definitions and invariants."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.baselines import step_level
from hgpo_rllib.advantages.diagnostics import level_sizes, utilization
from hgpo_rllib.advantages.estimators import ESTIMATORS
from hgpo_rllib.advantages.groups import (
    compare_levels,
    context_levels,
    group_advantage,
    history_ids,
)
from hgpo_rllib.advantages.hierarchy import hgpo
from hgpo_rllib.bench.advantages import hgpo_by_dictionary
from tests.paths import SHARED
from tests.unit.advantages.advantage_batches import (
    BATCHES,
    SETTINGS,
    Trajectory,
    arrays,
    columns,
    one_step_each,
    rows,
)

RECORDINGS = SHARED / "parity/hgpo_vectors.json"
CASES = json.loads(RECORDINGS.read_text())["cases"] if RECORDINGS.is_file() else []
# Estimators that compare a step only with steps or trajectories of its own task.
WITHIN_A_TASK = (
    *("hgpo", "gigpo", "grpo", "rloo", "oracle", "hgpo_no_hierarchy", "hgpo_uniform"),
    *("oracle_context", "oracle_else_step"),
    *("hgpo_base_group", "hgpo_leave_one_out", "hgpo_uncertainty"),
)
OTHERS = tuple(name for name in ESTIMATORS if name not in WITHIN_A_TASK)


@pytest.mark.skipif(not CASES, reason="the recorded vectors are not beside this checkout")
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"K{c['K']}-{c['contexts']}-{c['norm']}")
def test_recordings(case: dict[str, Any]) -> None:
    """Returns, advantages and the share of compared steps equal the recorded ones."""
    table = [
        (i, t, state, reward, bad)
        for i, member in enumerate(case["group"])
        for t, (state, reward, bad) in enumerate(
            zip(member["states"], member["rewards"], member["invalid"], strict=True)
        )
    ]
    trajectory, time, anchor, reward, invalid = zip(*table, strict=True)
    steps = StepArrays.from_columns(
        task=["task"] * len(table),
        trajectory=trajectory,
        time=time,
        anchor=anchor,
        reward=reward,
        invalid=invalid,
        gamma=case["gamma"],
        invalid_penalty=case["invalid_penalty"],
    )
    returns = np.concatenate(case["step_returns"])
    np.testing.assert_allclose(steps.step_return, returns, rtol=0, atol=1e-12)
    settings = EstimatorSettings(case["K"], case["alpha"], case["norm"], case["contexts"])
    recorded = np.concatenate(case["advantages"])
    np.testing.assert_allclose(hgpo(steps, settings), recorded, rtol=0, atol=1e-12)
    # In both modes, the recorded share refers to the paper's groups.
    sizes = level_sizes([*compare_levels(steps, replace(settings, contexts="paper"))])
    np.testing.assert_allclose(utilization(sizes), case["utilization"], atol=1e-12)


@given(BATCHES, SETTINGS)
def test_definition(batch: list[Trajectory], settings: EstimatorSettings) -> None:
    """HGPO equals a reference implementation with dictionaries on random batches."""
    table = columns(batch)
    table.pop("trajectory_return")
    expected = hgpo_by_dictionary(**table, settings=settings)
    np.testing.assert_allclose(hgpo(arrays(batch), settings), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("names", "atol"), [(WITHIN_A_TASK, 1e-9), (OTHERS, 1e-5)], ids=["within a task", "others"]
)
@given(BATCHES, SETTINGS, st.randoms(use_true_random=False), st.data())
def test_the_order_of_rows_does_not_matter(names, atol, batch, settings, random, data) -> None:
    """Shuffling the rows permutes the advantages accordingly.

    In the other estimators, tiny deviations may cross the threshold of rounding errors.
    """
    steps = arrays(batch)
    order = np.array(random.sample(range(len(steps)), len(steps)))
    estimator = find_estimator(data.draw(st.sampled_from(names)))
    before, after = estimator(steps, settings), estimator(rows(steps, order), settings)
    np.testing.assert_allclose(after, before[order], atol=atol)


@given(BATCHES, SETTINGS, st.permutations("abc"), st.permutations(range(3)))
def test_names_do_not_matter(batch, settings, letters, tasks) -> None:
    """Renaming anchors, tasks and trajectories, even to other types, changes no advantage."""
    table = columns(batch)
    renamed = table | {
        "anchor": [(letters[state], "seen") for state in table["anchor"]],
        "task": [frozenset({tasks[task]}) for task in table["task"]],
        "trajectory": [f"episode {100 - i}" for i in table["trajectory"]],
    }
    for name in WITHIN_A_TASK:
        estimator = find_estimator(name)
        before = estimator(StepArrays.from_columns(**table), settings)
        after = estimator(StepArrays.from_columns(**renamed), settings)
        np.testing.assert_allclose(after, before, atol=1e-9)


@given(BATCHES, SETTINGS, st.integers(-400, 400).map(lambda n: n / 4))
def test_a_constant_does_not_matter(batch, settings, constant: float) -> None:
    """Adding a constant to all returns of task 0 changes no advantage."""
    steps = arrays(batch)
    added = np.where(steps.task == 0, constant, 0.0)
    shifted = replace(
        steps,
        step_return=steps.step_return + added,
        trajectory_return=steps.trajectory_return + added,
    )
    for name in WITHIN_A_TASK:
        before, after = (find_estimator(name)(s, settings) for s in (steps, shifted))
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-9, err_msg=name)


@given(BATCHES, SETTINGS, st.sampled_from([-8.0, -1.0, 0.5, 3.0, 1024.0]))
def test_a_scale(batch, settings, scale: float) -> None:
    """Scaling the returns scales `mean` advantages, and affects only the sign of `mean_std`."""
    steps = arrays(batch)
    scaled = replace(
        steps,
        step_return=scale * steps.step_return,
        trajectory_return=scale * steps.trajectory_return,
    )
    for name in WITHIN_A_TASK:
        before, after = (find_estimator(name)(s, settings) for s in (steps, scaled))
        if settings.normalize == "mean" or name == "rloo":
            np.testing.assert_allclose(after, scale * before, rtol=1e-9, atol=1e-9, err_msg=name)
        else:  # up to the 1e-6 added to the standard deviation
            expected = np.sign(scale) * before
            np.testing.assert_allclose(after, expected, rtol=0, atol=1e-3, err_msg=name)


@given(BATCHES, SETTINGS)
def test_other_tasks_do_not_matter(batch, settings) -> None:
    """A task's advantages are the same with and without other tasks in the batch."""
    steps = arrays(batch)
    for name in WITHIN_A_TASK:
        together = find_estimator(name)(steps, settings)
        for task in np.unique(steps.task):
            own = np.flatnonzero(steps.task == task)
            alone = find_estimator(name)(rows(steps, own), settings)
            np.testing.assert_allclose(together[own], alone, rtol=0, atol=1e-9, err_msg=name)


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=60),
    st.one_of(st.floats(-1e6, 1e6), st.integers(0, 50).map(lambda t: 10 * 0.95**t)),
    SETTINGS,
)
def test_equal_returns_give_exactly_zero(states, value: float, settings) -> None:
    """Advantages are exactly 0 if all returns are equal, despite rounding in the mean."""
    steps = one_step_each([value] * len(states), states)
    for name in (*WITHIN_A_TASK, "reinforce"):
        assert not find_estimator(name)(steps, settings).any(), name


@pytest.mark.parametrize("normalize", ["mean", "mean_std"])
def test_a_large_group_of_equal_returns_gives_exactly_zero(normalize) -> None:
    """A million equal values get advantage 0, although their sum has a large rounding error."""
    value = np.full(1_000_000, 10 * 0.95**7)
    assert abs(np.bincount(np.zeros(len(value), int), value)[0] / len(value) / value[0] - 1) > 1e-12
    advantage, size = group_advantage(np.zeros(len(value), np.int64), value, normalize)
    assert not advantage.any()
    assert set(size) == {1_000_000}


@given(st.permutations([0.1, 0.2, 0.3]), SETTINGS)
def test_a_return_at_the_mean_gives_exactly_zero(returns, settings) -> None:
    """A return at the mean gets advantage 0, however the sum 0.1 + 0.2 + 0.3 is rounded."""
    got = hgpo(one_step_each(returns), settings)
    assert got[returns.index(0.2)] == 0
    assert abs(got[returns.index(0.3)]) > 0.09


@pytest.mark.parametrize("scale", [1, -1, 2**20])
def test_rounding_is_relative_to_the_largest_value(scale: int) -> None:
    """The tolerance for rounding errors is relative to the group's largest absolute value."""
    got = hgpo(one_step_each([0.0, scale * 0.7, scale * 1.4]), EstimatorSettings())
    assert got[1] == 0
    assert np.sign(scale) * got[2] > 1


@pytest.mark.parametrize(("value", "is_rounding"), [(1e-12, True), (3e-12, False)])
def test_the_tolerance_for_rounding_errors(value: float, is_rounding: bool) -> None:
    """Deviations, here two thirds of the value, count up to 1e-12 of the largest value as 0."""
    got = hgpo(one_step_each([-1.0, value, 1.0]), EstimatorSettings(normalize="mean"))
    assert (got[1] == 0) == is_rounding


@given(BATCHES, st.integers(0, 5), st.sampled_from(["paper", "released"]))
def test_groups_nest(batch, depth: int, contexts) -> None:
    """Every group of a level, or of the Oracle, lies inside a single group of the level before."""
    steps = arrays(batch)
    levels = list(context_levels(steps, depth, contexts))
    if contexts == "paper":
        levels.append(history_ids(steps))
    for coarse, fine in pairwise(levels):
        inside = fine >= 0
        pairs = {*zip(fine[inside].tolist(), coarse[inside].tolist(), strict=True)}
        assert len(pairs) == len({group for group, _ in pairs})  # one coarse group per fine


@given(BATCHES)
def test_a_deep_level_is_the_whole_history(batch) -> None:
    """With K beyond the longest trajectory, the last level has the groups of the Oracle."""
    steps = arrays(batch)
    *_, deepest = context_levels(steps, 6)
    whole = history_ids(steps)
    assert len({*zip(deepest.tolist(), whole.tolist(), strict=True)}) == len({*whole.tolist()})
    assert len({*deepest.tolist()}) == len({*whole.tolist()})


@given(BATCHES, SETTINGS)
def test_steps_in_singleton_groups_get_nothing(batch, settings) -> None:
    """A step that is alone at every level has advantage 0."""
    steps = arrays(batch)
    alone = (level_sizes([*compare_levels(steps, settings)]) < 2).all(axis=0)
    for name in ("hgpo", "hgpo_uniform", "hgpo_leave_one_out", "hgpo_uncertainty"):
        assert not find_estimator(name)(steps, settings)[alone].any()


@given(BATCHES, SETTINGS)
def test_depth_zero_is_the_step_level_estimate(batch, settings) -> None:
    """With K = 0 HGPO compares by task and state alone, like its ablation (Eq. 2)."""
    steps = arrays(batch)
    got = hgpo(steps, replace(settings, context_length=0))
    np.testing.assert_allclose(got, step_level(steps, settings), rtol=0, atol=1e-12)
    ablation = find_estimator("hgpo_no_hierarchy")(steps, settings)
    np.testing.assert_allclose(got, ablation, rtol=0, atol=1e-12)
    for task, state in {*zip(steps.task, steps.anchor, strict=True)}:
        group = (steps.task == task) & (steps.anchor == state)
        centered = steps.step_return[group] - steps.step_return[group].mean()
        scale = centered.std() + 1e-6 if settings.normalize == "mean_std" else 1.0
        np.testing.assert_allclose(got[group], centered / scale, rtol=0, atol=1e-9)


@given(BATCHES, SETTINGS)
def test_alpha_zero_is_uniform(batch, settings) -> None:
    """With alpha = 0, all levels weigh the same, as in the ablation without adaptive weights."""
    steps = arrays(batch)
    got = hgpo(steps, replace(settings, weight_alpha=0.0))
    uniform = find_estimator("hgpo_uniform")(steps, settings)
    np.testing.assert_allclose(got, uniform, rtol=0, atol=1e-12)


def test_by_hand() -> None:
    """Advantages of one state with two histories equal those computed by hand."""
    steps = arrays([(0, [0, 9], [0.0, 8.0]), (0, [0, 9], [0.0, 4.0]), (0, [9], [0.0])])
    # State 9: mean 4, so 4, 0 and -4. After state 0: mean 6, so 2 and -2; the third is alone.
    # Expected: (1 * 4 + 2 * 2) / 3; -2, as the zero of level 0 is left out; (1 * -4) / 1.
    got = hgpo(steps, EstimatorSettings(1, 1.0, "mean"))
    np.testing.assert_allclose(got, [0, 8 / 3, 0, -2, -4])
    # `released` weights the levels by 2 and 3 instead of 1 and 2.
    got = hgpo(steps, EstimatorSettings(1, 1.0, "mean", "released"))
    np.testing.assert_allclose(got, [0, (2 * 4 + 3 * 2) / 5, 0, -2, -4])


def test_a_negative_depth_is_refused() -> None:
    """The error names the argument and its value."""
    with pytest.raises(ValueError, match="context_length must be 0 or more, got -1"):
        hgpo(one_step_each([1.0, 2.0]), EstimatorSettings(context_length=-1))
