"""Estimators that weight steps by likelihood, compared with their definitions in plain loops."""

import math

import numpy as np
from hypothesis import given

from hgpo_rllib.advantages import EstimatorSettings, StepArrays, find_estimator
from tests.unit.advantages.advantage_batches import (
    BATCHES,
    SETTINGS,
    arrays,
    by_trajectory,
    centered,
    compare,
    nll,
)


@given(BATCHES, SETTINGS)
def test_gaca(batch, settings) -> None:
    """The comparison by state (Eq. 2) has weight 1 / (1 + exp(-z)), with z over the trajectory."""
    state = centered(batch, settings, lambda task, states, t: (task, states[t]))
    unlikely = [
        compare(nll(value), [nll(other) for other in returns], "mean_std")
        for _, _, returns in batch
        for value in returns
    ]
    expected = [
        own / (1 + math.exp(-z)) + whole / (1 + math.exp(z))
        for own, whole, z in zip(state, by_trajectory(batch, settings), unlikely, strict=True)
    ]
    got = find_estimator("gaca")(arrays(batch), settings)
    np.testing.assert_allclose(got, expected, atol=1e-7)


@given(BATCHES, SETTINGS)
def test_empg(batch, settings) -> None:
    """Entropies are scaled over the batch, last steps have no bonus, and the mean is subtracted."""
    every = [nll(value) for _, _, returns in batch for value in returns]
    low, high = min(every), max(every)
    scaled = [[(nll(v) - low) / (high - low + 1e-8) for v in returns] for _, _, returns in batch]
    mean = np.mean([math.exp(-h) for row in scaled for h in row])
    whole = iter(by_trajectory(batch, settings))
    raw = [
        math.exp(-h) / mean * next(whole) + (0.05 * math.exp(-row[t + 1]) if row[t + 1 :] else 0)
        for row in scaled
        for t, h in enumerate(row)
    ]
    got = find_estimator("empg")(arrays(batch), settings)
    np.testing.assert_allclose(got, np.array(raw) - np.mean(raw), atol=1e-9)


def test_an_unlikely_response_is_judged_by_its_state() -> None:
    """An unlikely response is judged by its state, a certain one by its trajectory."""
    steps = StepArrays.from_columns(
        task=[0] * 4,
        trajectory=[0, 0, 1, 1],
        time=[0, 1, 0, 1],
        anchor=["hall", "door", "hall", "door"],
        reward=[0.0, 10.0, 0.0, 0.0],
        nll=[0.0, 2.0, 0.0, 2.0],  # each is one standard deviation, 1, from the mean
        gamma=0.5,
    )
    guess = 1 / (1 + math.exp(-1))
    expected = [  # returns from the hall are 5 and 0, those of the trajectories 10 and 0
        2.5 * (1 - guess) + 5 * guess,
        5.0,
        -2.5 * (1 - guess) - 5 * guess,
        -5.0,
    ]
    got = find_estimator("gaca")(steps, EstimatorSettings(normalize="mean"))
    np.testing.assert_allclose(got, expected, atol=1e-5)
