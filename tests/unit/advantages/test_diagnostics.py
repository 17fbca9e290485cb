"""Diagnostics of groups, checked by hand on a small batch."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from hgpo_rllib.advantages import EstimatorSettings, diagnostics
from hgpo_rllib.advantages.groups import compare_levels
from hgpo_rllib.advantages.hierarchy import hgpo
from tests.unit.advantages.advantage_batches import arrays, one_step_each

SETTINGS = EstimatorSettings(context_length=1, normalize="mean")
# State 9 occurs twice after state 0 and once at the start; state 0 at two starts, 7 once.
BATCH = [(0, [0, 9], [0.0, 8.0]), (0, [0, 9], [0.0, 4.0]), (0, [9, 7], [0.0, 1.0])]
STEPS = arrays(BATCH)
LEVELS = tuple(compare_levels(STEPS, SETTINGS))


def test_sizes_by_level() -> None:
    """Sizes are given by level; the third trajectory shares state 9 only at level 0."""
    sizes = diagnostics.level_sizes(LEVELS)
    assert sizes.tolist() == [[2, 3, 2, 3, 3, 1], [2, 2, 2, 2, 1, 1]]
    np.testing.assert_allclose(diagnostics.utilization(sizes), [5 / 6, 4 / 6])
    np.testing.assert_allclose(diagnostics.mean_size(sizes), [13 / 5, 2])
    shares = diagnostics.size_distribution(sizes)
    assert shares.shape == (2, len(diagnostics.SIZE_LABELS))
    np.testing.assert_allclose(shares[0], np.array([1, 2, 3, 0, 0, 0, 0]) / 6)
    np.testing.assert_allclose(shares[1], np.array([2, 4, 0, 0, 0, 0, 0]) / 6)


def test_groups_of_one_and_no_steps() -> None:
    """Mean sizes and shares are 0, not NaN, if nothing is compared or there are no steps."""
    assert diagnostics.mean_size(np.array([[1, 1], [0, 1]])).tolist() == [0, 0]
    assert not diagnostics.size_distribution(np.zeros((2, 0), int)).any()
    assert diagnostics.size_distribution(np.array([[1]])).sum() == 1


def test_released_levels_have_no_group_early() -> None:
    """With `released` contexts, a first step has size 0 at level 1 and is counted in no bin."""
    settings = EstimatorSettings(context_length=1, contexts="released")
    sizes = diagnostics.level_sizes([*compare_levels(STEPS, settings)])
    assert sizes[1].tolist() == [0, 2, 0, 2, 0, 1]
    assert diagnostics.size_distribution(sizes)[1].sum() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (1, "1"),
        (2, "2"),
        (3, "3-4"),
        (4, "3-4"),
        (5, "5-8"),
        (8, "5-8"),
        (9, "9-16"),
        (16, "9-16"),
        (17, "17-32"),
        (32, "17-32"),
        (33, "33+"),
        (400, "33+"),
    ],
)
def test_bins_are_what_their_labels_say(size: int, label: str) -> None:
    """Sizes at both ends of each bin are counted in that bin."""
    shares = diagnostics.size_distribution(np.full((1, 4), size))
    assert diagnostics.SIZE_LABELS[int(shares[0].argmax())] == label
    assert shares.sum() == 1


def test_oracle_gaps_by_hand() -> None:
    """Gaps are as computed by hand (Oracle 0, 2, 0, -2; by state 0, 4, 0, 0; Eq. 1 all 0)."""
    gaps = diagnostics.oracle_gaps(STEPS, LEVELS, SETTINGS)
    # HGPO: step 1 is (4 + 2 * 2) / 3 = 8 / 3, step 3 is -2 (its level 0 is an exact zero).
    assert gaps == pytest.approx({"trajectory": 1.0, "step": 1.0, "hgpo": (8 / 3 - 2) / 4})
    # In standard deviations: Oracle 0, 1, 0, -1; by state 0, z, 0, 0; HGPO (z + 2) / 3 for z.
    settings = EstimatorSettings(context_length=1)
    scaled = diagnostics.oracle_gaps(STEPS, tuple(compare_levels(STEPS, settings)), settings)
    z = 4 / math.sqrt(32 / 3)
    expected = {"trajectory": 2 / 4, "step": (z - 1 + 1) / 4, "hgpo": ((z + 2) / 3 - 1) / 4}
    assert scaled == pytest.approx(expected, rel=1e-5)
    unknown = diagnostics.oracle_gaps(replace(STEPS, trajectory_return=None), LEVELS, SETTINGS)
    assert unknown.keys() == {"step", "hgpo"}


def test_gaps_without_twins_are_unknown() -> None:
    """Gaps are NaN, not 0, if no step shares its history with another."""
    steps = one_step_each([1.0, 2.0], [0, 1])
    gaps = diagnostics.oracle_gaps(steps, tuple(compare_levels(steps, SETTINGS)), SETTINGS)
    unknown = dict.fromkeys(("trajectory", "step", "hgpo"), math.nan)
    assert gaps == pytest.approx(unknown, nan_ok=True)


def test_summary() -> None:
    """The summary maps flat names to plain floats."""
    advantage = hgpo(STEPS, SETTINGS) + 0.0
    advantage[:2] = 1.0, 3.0
    summary = diagnostics.summary(STEPS, advantage, LEVELS, SETTINGS)
    assert summary == pytest.approx(
        {
            "advantage_mean": float(sum(advantage)) / 6,
            "zero_advantage_fraction": 2 / 6,
            "level_fraction_k0": 5 / 6,
            "level_group_size_k0": 2.6,
            "level_fraction_k1": 4 / 6,
            "level_group_size_k1": 2.0,
            "oracle_fraction": 4 / 6,
            "oracle_group_size": 2.0,
            "oracle_gap_trajectory": 1.0,
            "oracle_gap_step": 1.0,
            "oracle_gap_hgpo": (8 / 3 - 2) / 4,
            "teacher_gap": 5.5 / 6,
        }
    )
    assert {type(value) for value in summary.values()} == {float}
    with_values = replace(STEPS, value=STEPS.step_return)
    assert diagnostics.summary(with_values, advantage, LEVELS, SETTINGS) == summary | {
        "explained_variance": 1.0
    }
    for column in ("nll", "teacher_nll"):
        unknown = diagnostics.summary(replace(STEPS, **{column: None}), advantage, LEVELS, SETTINGS)
        assert unknown.keys() == summary.keys() - {"teacher_gap"}


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ([[0, *range(10 * i + 1, 10 * i + 10)] for i in range(4)], r"^only 0\.0% of the steps, wi"),
        # Two of 20 later steps share their state: 10 %. One more trajectory lowers the share.
        ([[0, *range(1, 11)], [0, 1, *range(21, 30)]], None),
        ([[0, *range(1, 11)], [0, 1, *range(21, 30)], [0, 40]], r"^only 9\.5% of the steps, wi"),
        ([[7] * 5, [7] * 5], r"^a step shares its state with 100\.0% of the steps of its task, so"),
        ([[7] * 10, [7] * 9 + [8]], r"^a step shares its state with 90\.5% "),
        ([[7] * 10, [7] * 8 + [8] * 2], None),  # 82 %
        ([[7], [7], [7]], None),  # one step per trajectory, so the state is the task
        ([], None),
    ],
)
def test_anchors_of_no_use(states: list[list[int]], problem: str | None) -> None:
    """Anchors that are too specific or too coarse for comparing steps are reported."""
    batch = [(task, path, [0.0] * len(path)) for task in (0, 1) for path in states]
    steps = arrays(batch)
    (level,) = compare_levels(steps, EstimatorSettings(context_length=0))
    found = diagnostics.anchor_problem(steps, level.size)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(problem, found)


def test_explained_variance() -> None:
    """It is 1 up to a constant, 0 for a constant, negative if worse, and NaN for equal returns."""
    returns = np.array([0.0, 1.0, 5.0])
    assert diagnostics.explained_variance(returns + 3, returns) == pytest.approx(1)
    assert diagnostics.explained_variance(returns / 10, returns / 10) == 1
    assert diagnostics.explained_variance(np.full(3, 7.0), returns) == pytest.approx(0)
    assert diagnostics.explained_variance(-returns, returns) == pytest.approx(-3)
    assert np.isnan(diagnostics.explained_variance(returns, np.ones(3)))
