"""Summary statistics of episodes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_rllib.rollout.outcomes import clustered_error


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(1, 5))
def test_repeated_episodes_add_no_information(success: list[bool], times: int) -> None:
    """The error equals that of a mean over games; repeating every episode does not reduce it."""
    games = np.arange(len(success))
    expected = np.std(success, ddof=1) / math.sqrt(len(success))
    found = clustered_error(np.repeat(success, times), np.repeat(games, times))
    assert found == pytest.approx(expected, abs=1e-12)


def test_games_with_different_numbers_of_episodes() -> None:
    """The error matches a manual computation: mean 0.6, residuals 0.2, -0.6 and 0.4."""
    error = clustered_error([1, 0, 1, 0, 1], ["a", "b", "a", "a", "c"])
    assert error == pytest.approx(math.sqrt(3 / 2 * (0.2**2 + 0.6**2 + 0.4**2)) / 5)


def test_a_single_game_has_no_error() -> None:
    assert math.isnan(clustered_error([1, 0, 1], ["a", "a", "a"]))


def test_the_error_is_that_of_repeated_experiments() -> None:
    """The mean error equals the spread of simulated experiments with two episodes per game."""
    rng = np.random.default_rng(0)
    games = np.repeat(np.arange(48), 2)
    means, errors = [], []
    for _ in range(2000):
        difficulty = rng.beta(0.5, 0.5, 48)
        success = rng.random(96) < difficulty[games]
        means.append(success.mean())
        errors.append(clustered_error(success, games))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.05)
    assert np.std(means) > 1.1 * math.sqrt(0.25 / 96)  # the binomial error
