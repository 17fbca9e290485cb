"""Credit for strategies, compared with a plain loop and with GRPO in its limits."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from tests.unit.advantages.advantage_batches import QUARTERS, by_trajectory, compare

EPISODES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 2), QUARTERS, st.integers(1, 3)),
    min_size=1,
    max_size=12,
)
SHARES = st.sampled_from([0.1, 0.34, 0.5, 0.75, 1.0])
Episodes = list[tuple[int, int, float, int]]
strata, grpo = find_estimator("strata"), find_estimator("grpo")


def batch(episodes: Episodes) -> StepArrays:
    """Return the steps of episodes of (task, strategy, return, number of steps)."""
    rows = [(i, t) for i, (*_, length) in enumerate(episodes) for t in range(length)]
    return StepArrays.from_columns(
        task=[episodes[i][:2] for i, _ in rows],
        trajectory=[i for i, _ in rows],
        time=[t for _, t in rows],
        anchor=[0] * len(rows),
        step_return=[0.0] * len(rows),
        trajectory_return=[episodes[i][2] for i, _ in rows],
        parent=[episodes[i][0] for i, _ in rows],
    )


@given(EPISODES, SHARES, st.sampled_from(["mean", "mean_std"]))
def test_by_a_loop(episodes: Episodes, share: float, normalize: str) -> None:
    """Strategies of a task are compared by the mean of their best returns."""
    settings = EstimatorSettings(strategy_share=share, normalize=normalize)
    returns = defaultdict(list)
    for task, strategy, value, _ in episodes:
        returns[task, strategy].append(value)
    worth = {}
    for key, values in returns.items():
        best = sorted(values, reverse=True)[: max(1, round(share * len(values)))]
        worth[key] = sum(best) / len(best)
    expected = []
    for task, strategy, _, length in episodes:
        peers = [value for (other, _), value in worth.items() if other == task]
        expected += [compare(worth[task, strategy], peers, normalize)] * length
    np.testing.assert_allclose(strata(batch(episodes), settings), expected, atol=1e-7)


@given(EPISODES, SHARES)
def test_one_execution_per_strategy_is_grpo(episodes: Episodes, share: float) -> None:
    """With one execution each, strategies are compared as GRPO compares trajectories."""
    own = [(task, i, *rest) for i, (task, _, *rest) in enumerate(episodes)]
    steps, settings = batch(own), EstimatorSettings(strategy_share=share)
    expected = grpo(replace(steps, task=steps.parent), settings)
    np.testing.assert_allclose(strata(steps, settings), expected, atol=1e-9)
    without = replace(steps, task=steps.parent, parent=None)
    np.testing.assert_allclose(strata(without, settings), expected, atol=1e-9)


@given(EPISODES, SHARES)
def test_one_strategy_is_grpo_for_actions(episodes: Episodes, share: float) -> None:
    """GRPO compares all executions of a single strategy, which gets no advantage itself."""
    one = [(task, 0, *rest) for task, _, *rest in episodes]
    steps, settings = batch(one), EstimatorSettings(strategy_share=share)
    assert not strata(steps, settings).any()
    expected = by_trajectory([(task, [0] * n, [value] * n) for task, _, value, n in one], settings)
    np.testing.assert_allclose(grpo(steps, settings), expected, atol=1e-9)


def test_noisy_executions_do_not_condemn_a_strategy() -> None:
    """If half of the executions count, one success in two is as good as two."""
    episodes = [(0, 0, 10.0, 1), (0, 0, 0.0, 1), (0, 1, 10.0, 1), (0, 1, 10.0, 1)]
    assert not strata(batch(episodes), EstimatorSettings(strategy_share=0.5)).any()
    whole = strata(batch(episodes), EstimatorSettings(strategy_share=1.0, normalize="mean"))
    np.testing.assert_allclose(whole, [-2.5, -2.5, 2.5, 2.5])


def test_a_trajectory_has_one_parent() -> None:
    steps = batch([(0, 0, 1.0, 2)])
    with pytest.raises(ValueError, match="one trajectory, but parent is 0 and 1"):
        replace(steps, parent=np.array([0, 1]))


def test_half_an_execution_is_rounded_to_even() -> None:
    """One half of five executions is two of them: Python's `round` makes 2 of 2.5."""
    episodes = [(0, 0, value, 1) for value in (9.0, 6.0, 3.0, 0.0, 0.0)] + [(0, 1, 0.0, 1)]
    got = strata(batch(episodes), EstimatorSettings(strategy_share=0.5, normalize="mean"))
    np.testing.assert_allclose(got, [3.75] * 5 + [-3.75])
