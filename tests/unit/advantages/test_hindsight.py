"""Estimators that use a teacher, each compared with its definition in plain loops."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from hgpo_rllib.advantages.hindsight import gear
from tests.unit.advantages.advantage_batches import (
    BATCHES,
    SETTINGS,
    arrays,
    by_trajectory,
    compare,
    teacher_nll,
    won,
)


@given(BATCHES, SETTINGS)
def test_hcapo(batch, settings) -> None:
    """Ratios are per trajectory, values per task, and steps of won episodes are never lowered."""
    values, smoothing = [], settings.hindsight_smoothing
    for _, _, returns in batch:
        likely = [math.exp(-teacher_nll(value) / 5) for value in returns]
        ratios = [min(max(h / np.mean(likely), 0.8), 1.2) for h in likely]
        own = [ratio * value for ratio, value in zip(ratios, returns, strict=True)]
        following = [*own[1:], own[-1]]
        values.append(
            [(1 - smoothing) * a + smoothing * b for a, b in zip(own, following, strict=True)]
        )
    values_by_task = defaultdict(list)
    for (task, _, _), own in zip(batch, values, strict=True):
        values_by_task[task] += own
    expected = iter(by_trajectory(batch, settings))
    for (task, states, _), own in zip(batch, values, strict=True):
        for i, value in enumerate(own):
            hindsight = compare(value, values_by_task[task], settings.normalize)
            if won(states):
                hindsight = max(hindsight, 0)
            own[i] = next(expected) + settings.step_weight * hindsight
    got = find_estimator("hcapo")(arrays(batch), settings)
    np.testing.assert_allclose(got, [a for own in values for a in own], atol=1e-6)


def test_hindsight_by_hand() -> None:
    """Penalties count only in the comparison of trajectories, here of a won and a lost one."""
    steps = StepArrays.from_columns(
        task=[0] * 4,
        trajectory=[0, 0, 1, 1],
        time=[0, 1, 0, 1],
        anchor=["hall", "door", "hall", "door"],
        reward=[0.0, 10.0, 0.0, 0.0],
        invalid=[True, False, False, True],
        invalid_penalty=1.0,
        gamma=0.5,
        won=[True, True, False, False],
        teacher_nll=[0.0, 50.0, 3.0, 3.0],  # clipped to 1.2 and 0.8
    )
    value = np.array([1.2 * 5, 0.8 * 10, 0, 0])
    whole = np.array([5.0, 5, -5, -5])
    for smoothing, expected in ((0.0, value), (0.5, np.array([7.0, 8, 0, 0]))):
        settings = EstimatorSettings(normalize="mean", hindsight_smoothing=smoothing)
        got = find_estimator("hcapo")(steps, settings)
        np.testing.assert_allclose(got, whole + expected - expected.mean(), atol=1e-12)


def test_a_step_of_a_won_episode_is_not_blamed() -> None:
    """A step of a won episode is not blamed for a value below the task's mean."""
    steps = StepArrays.from_columns(
        task=[0] * 3,
        trajectory=[0, 0, 1],
        time=[0, 1, 0],
        anchor=["hall", "door", "hall"],
        reward=[0.0, 10.0, 10.0],
        gamma=0.5,
        won=[True, True, True],
        teacher_nll=[1.0, 1.0, 1.0],
    )
    settings = EstimatorSettings(normalize="mean")
    got = find_estimator("hcapo")(steps, settings)
    np.testing.assert_allclose(got, [0, 10 - 25 / 3, 10 - 25 / 3])


LOGPS = st.integers(0, 12).map(lambda n: -n / 4)
RESPONSES = st.lists(
    st.tuples(
        st.sampled_from([-2.0, 0.0, 1.5]),  # advantage of the step
        st.lists(st.tuples(LOGPS, LOGPS), min_size=1, max_size=14),  # policy, teacher
    ),
    min_size=1,
    max_size=4,
)


def stands_out(value: float, values: list[float]) -> bool:
    """Return whether a value is more than two standard deviations above the mean."""
    return len(set(values)) > 1 and (value - np.mean(values)) / (np.std(values) + 1e-6) > 2


def gear_of(responses: list[Any]) -> tuple[Any, Any]:
    """Return the advantages of the responses' tokens, and the response of each token."""
    response = np.repeat(np.arange(len(responses)), [len(tokens) for _, tokens in responses])
    logp, teacher_logp = np.array([pair for _, tokens in responses for pair in tokens]).T
    advantages = np.array([advantage for advantage, _ in responses])
    return gear(advantages[response], response, logp, teacher_logp), response


@given(RESPONSES)
@example([(1.5, [(-0.5, -0.5)] * 5 + [(-0.5, 0.0)] + [(-0.5, -0.5)] * 5)])
@example([(1.5, [(-0.5, 0.0)] + [(-0.5, -0.5)] * 6)])  # the first token, 2.4 deviations away
@example([(-2.0, [(0, 0)] * 6 + [(0, -3)] + [(0, 0)] * 4 + [(-3, -3)] + [(0, 0)] * 9)])
def test_gear(responses) -> None:
    """A segment keeps its anchor's weight until the next anchor or uncertain token."""
    expected = []
    for advantage, tokens in responses:
        gaps = [teacher - own for own, teacher in tokens]
        sizes, surprises = [abs(gap) for gap in gaps], [-own for own, _ in tokens]
        weights, anchor = [], None
        for gap, size, surprise in zip(gaps, sizes, surprises, strict=True):
            if stands_out(surprise, surprises):
                anchor = None
            if stands_out(size, sizes):
                anchor = gap
            used = gap if anchor is None else anchor
            weights.append(min(max(math.exp(np.sign(advantage) * used), 0.5), 2.0))
        expected += [advantage * weight / np.mean(weights) for weight in weights]
    got, _ = gear_of(responses)
    np.testing.assert_allclose(got, expected, atol=1e-9)


@given(RESPONSES)
def test_gear_moves_credit_within_a_response(responses) -> None:
    """The mean over a response's tokens stays the advantage of the step."""
    got, response = gear_of(responses)
    for i, (advantage, _) in enumerate(responses):
        assert got[response == i].mean() == pytest.approx(advantage)


def test_a_segment_by_hand() -> None:
    """Tokens after the anchor get its weight, up to the next uncertain token."""
    sampled, teacher = np.full(16, -0.1), np.full(16, -0.1)
    teacher[4] = -3.1  # unlikely for the teacher
    sampled[9] = teacher[9] = -2.0  # the policy is uncertain
    won, lost = (
        gear(np.full(16, advantage), np.zeros(16, int), sampled, teacher)
        for advantage in (1.0, -1.0)
    )
    less, more = 16 / (11 + 5 / 2), 16 / (11 + 5 * 2)
    np.testing.assert_allclose(won, [less] * 4 + [less / 2] * 5 + [less] * 7)
    np.testing.assert_allclose(lost, [-more] * 4 + [-2 * more] * 5 + [-more] * 7)
