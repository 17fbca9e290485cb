"""Means over games, their intervals, and paired tests, against known cases."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hgpo_rllib.evaluation.statistics import (
    RESAMPLES,
    Estimate,
    compare_means,
    estimate,
    estimate_share,
    per_game,
    results,
)


def by_game(values: list[float]) -> pd.Series:
    """Return the values with a game's name for each place."""
    return pd.Series(values, [f"game {place:03d}" for place in range(len(values))])


class TestEstimate:
    def test_each_game_once(self) -> None:
        """The standard error is the textbook's for a mean."""
        values = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
        found = estimate(values, range(8))
        assert found.mean == 0.625
        assert found.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(8))

    def test_repeats_of_a_game_are_no_new_games(self) -> None:
        """Three equal episodes of each game give the same interval as one."""
        values = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
        once, thrice = estimate(values, range(8)), estimate(values * 3, [*range(8)] * 3)
        assert thrice.standard_error == pytest.approx(once.standard_error)
        assert (thrice.low, thrice.high) == (once.low, once.high)

    def test_games_with_different_numbers_of_episodes(self) -> None:
        """The mean is over episodes, not over games."""
        found = estimate([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
        assert found.mean == 0.75
        sums, counts = per_game([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"])
        assert (sums.tolist(), counts.tolist()) == ([3.0, 0.0], [3.0, 1.0])

    def test_the_interval_covers(self) -> None:
        """In 200 samples of games, about 95 % of the intervals contain the true mean."""
        rng = np.random.default_rng(1)
        hits = 0
        for _ in range(200):
            chance = rng.beta(2, 2, 60)  # success per game, with mean 1/2
            values = rng.random((3, 60)) < chance
            found = estimate(values.ravel().astype(float).tolist(), [*range(60)] * 3)
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= 0.5 <= found.high
        assert 180 <= hits <= 198

    def test_the_same_numbers_each_time(self) -> None:
        values = np.random.default_rng(0).random(30).tolist()
        assert estimate(values, range(30)) == estimate(values, range(30))

    def test_one_game(self) -> None:
        """A single game gives no standard error and no interval."""
        assert estimate([1.0, 0.0], ["a", "a"]) == Estimate(0.5, None, None, None)

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_all_alike_is_not_certain(self, value: float) -> None:
        """No win in 10 games allows up to 31 % (Clopper-Pearson: 1 - 0.025^(1/10))."""
        found = estimate_share([value] * 30, [*range(10)] * 3)
        width = 1 - 0.025 ** (1 / 10)
        expected = (0.0, width) if value == 0 else (1 - width, 1.0)
        assert (found.low, found.high) == pytest.approx(expected)

    def test_one_game_that_is_always_won(self) -> None:
        """One win of one game allows down to 2.5 % (Clopper-Pearson), without an error."""
        found = estimate_share([1.0, 1.0], ["a", "a"])
        assert found == Estimate(1.0, None, pytest.approx(0.025), 1.0)
        assert estimate_share([1.0, 0.0], ["a", "a"]) == Estimate(0.5, None, None, None)


def test_results_of_a_task_type_are_of_its_own_steps() -> None:
    episodes = pd.DataFrame(
        {
            "seed": 0,
            "place": [0, 1, 2],
            "game": ["a", "b", "c"],
            "task_type": ["x", "x", "y"],
            "success": [True, False, False],
            "score": [1.0, 0.5, 0.0],
            "episode_length": [1.0, 3.0, 2.0],
        }
    ).assign(trials=1.0, prompt_tokens=7.0, response_tokens=2.0)
    steps = pd.DataFrame({"seed": 0, "place": [0, 1, 1, 1, 2, 2]}).assign(
        is_valid=[True, False, True, True, True, True],
        inadmissible=[False, True, True, False, False, False],
        prompt_truncated=0.0,
        response_truncated=0.0,
    )
    found = results(episodes, steps)
    x, y = (found["by_task_type"][name] for name in "xy")
    assert (x["lost"], x["steps"], x["steps_of_won"]) == (1, 2.0, 1.0)
    assert (x["invalid_rate"], x["inadmissible_rate"]) == (0.25, 0.5)
    assert (y["lost"], y["steps"], y["steps_of_won"]) == (1, 2.0, None)
    assert (y["invalid_rate"], y["inadmissible_rate"]) == (0.0, 0.0)
    assert found["by_seed"]["0"]["score"] == 0.5


class TestCompare:
    def test_is_mcnemars_exact_test(self) -> None:
        """If each game is played once, the p-value is a binomial test of the discordant pairs."""
        a = [1.0] * 5 + [0.0] * 9 + [1.0] * 2
        b = [1.0] * 5 + [1.0] * 9 + [0.0] * 2
        found = compare_means(by_game(a), by_game(b))
        assert (found.better, found.worse, found.equal) == (9, 2, 5)
        assert found.p_value == pytest.approx(stats.binomtest(9, 11).pvalue)
        assert found.difference.mean == pytest.approx(7 / 16)

    def test_many_games(self) -> None:
        """With sampled permutations, the p-value is close to the exact one."""
        a, b = [0.0] * 45 + [1.0] * 25, [1.0] * 45 + [0.0] * 25
        found = compare_means(by_game(a), by_game(b))
        assert found.p_value == pytest.approx(stats.binomtest(45, 70).pvalue, abs=0.01)

    def test_a_clear_difference(self) -> None:
        found = compare_means(by_game([0.0] * 40), by_game([1.0] * 40))
        assert found.p_value < 5 / RESAMPLES
        low = pytest.approx(1 - 2 * (1 - 0.025 ** (1 / 40)))
        assert found.difference == Estimate(1.0, 0.0, low, 1.0)

    def test_none(self) -> None:
        """Other games can differ, as many as the exact binomial interval allows."""
        found = compare_means(by_game([0.5, 1.0] * 24), by_game([0.5, 1.0] * 24))
        assert (found.p_value, found.equal) == (1.0, 48)
        bounds = found.difference.low, found.difference.high
        assert bounds == pytest.approx((-0.07397, 0.07397), abs=1e-5)
        assert compare_means(by_game([0.0]), by_game([1.0])).p_value == 1.0

    def test_gains_that_equal_losses(self) -> None:
        """The p-value is 1 if gains equal losses, despite rounding errors in sums of thirds."""
        a = by_game([third / 3 for third in (1, 1, 3, 2, 2, 3, 0, 3)])
        b = by_game([third / 3 for third in (2, 2, 2, 2, 2, 3, 1, 1)])
        assert compare_means(a, b).p_value == 1.0

    def test_rounding_errors_are_no_differences(self) -> None:
        """0.1 + 0.2 is not exactly 0.3, but the games count as equal."""
        found = compare_means(by_game([0.3, 0.5]), by_game([0.1 + 0.2, 1.0]))
        assert (found.better, found.worse, found.equal) == (1, 0, 1)

    def test_pairing_matters(self) -> None:
        """A small steady gain is significant although games differ by far more."""
        rng = np.random.default_rng(0)
        a = rng.choice([0.1, 0.8], 40)
        b = a + rng.choice([0.0, 0.1], 40)
        found = compare_means(by_game(a.tolist()), by_game(b.tolist()))
        assert found.difference.low is not None
        assert found.difference.low > 0.03
        assert found.p_value < 0.001
        assert stats.f_oneway(a, b).pvalue > 0.2

    def test_the_test_is_of_its_size(self) -> None:
        """Without a difference, about 5 % of the tests are significant at 5 %."""
        rng = np.random.default_rng(2)
        found = [
            compare_means(
                by_game(rng.integers(0, 4, 12).tolist()), by_game(rng.integers(0, 4, 12).tolist())
            ).p_value
            for _ in range(200)
        ]
        assert 1 <= sum(p <= 0.05 for p in found) <= 20
