"""Estimators that read a teacher: each against its definition, in plain loops."""

import math
from collections import defaultdict

import numpy as np
from hypothesis import given

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from tests.unit.advantages.advantage_batches import BATCHES, SETTINGS, arrays, teacher_nll, won
from tests.unit.advantages.test_estimators import by_trajectory, compare


@given(BATCHES, SETTINGS)
def test_hcapo(batch, settings) -> None:
    """Ratios over the trajectory, values over the task, no harm to steps of won episodes."""
    values, smoothing = [], settings.hindsight_smoothing
    for _, _, returns in batch:
        likely = [math.exp(-teacher_nll(value) / 5) for value in returns]
        ratios = [min(max(h / np.mean(likely), 0.8), 1.2) for h in likely]
        own = [ratio * value for ratio, value in zip(ratios, returns, strict=True)]
        following = [*own[1:], own[-1]]
        values.append([(1 - smoothing) * a + smoothing * b for a, b in zip(own, following)])
    of_task = defaultdict(list)
    for (task, _, _), own in zip(batch, values, strict=True):
        of_task[task] += own
    expected = iter(by_trajectory(batch, settings))
    for (task, states, _), own in zip(batch, values, strict=True):
        for i, value in enumerate(own):
            hindsight = compare(value, of_task[task], settings.normalize)
            if won(states):
                hindsight = max(hindsight, 0)
            own[i] = next(expected) + settings.step_weight * hindsight
    got = find_estimator("hcapo")(arrays(batch), settings)
    np.testing.assert_allclose(got, [a for own in values for a in own], atol=1e-6)


def test_hindsight_by_hand() -> None:
    """A won and a lost episode: penalties are in the comparison of trajectories alone."""
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
    """Whose value is below the mean, here because success is far away."""
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
