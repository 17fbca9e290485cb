"""Statistics of studies, against definitions and in coverage simulations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from hgpo_rllib.studies import statistics as s

SIMULATIONS = 400
COVERAGE = (0.90, 0.99)  # accepted for nominal 95 %
EFFECT, MEAN = 0.06, 0.53


def simulate(
    rng: np.random.Generator, seeds: int, tasks: tuple[int, ...], mean_effect: float = EFFECT
) -> tuple[list[s.Floats], list[s.Floats]]:
    """Return success rates over two plays for arms A and B.

    True means are 0.5 ± mean_effect / 2. Tasks differ in difficulty and in how much they favor A;
    runs differ by their seed.
    """
    run = {arm: rng.uniform(-0.1, 0.1, (seeds, 1)) for arm in "AB"}
    a, b = [], []
    for number in tasks:
        difficulty = rng.uniform(0.22, 0.78, (1, number))
        effect = mean_effect + rng.uniform(-0.08, 0.08, (1, number))
        a.append(rng.binomial(2, difficulty + effect / 2 + run["A"]) / 2)
        b.append(rng.binomial(2, difficulty - effect / 2 + run["B"]) / 2)
    return a, b


def contains(interval: s.Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def ignoring_clusters(scores: s.Scores) -> s.Interval:
    """Return a t interval that treats all seeds and tasks as independent observations."""
    values = np.concatenate([part.ravel() for part in scores])
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return s.Interval(float(values.mean()), float(low), float(high))


@pytest.mark.parametrize(("seeds", "tasks"), [(5, (48,)), (5, (48, 96)), (8, (48, 48)), (3, (96,))])
def test_coverage_of_means_and_differences(seeds: int, tasks: tuple[int, ...]) -> None:
    """95 % intervals contain the truth in 90 to 99 % of simulations, and naive ones do not."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(SIMULATIONS):
        a, b = simulate(rng, seeds, tasks)
        paired = [x - y for x, y in zip(a, b, strict=True)]
        hits.append(
            (
                contains(s.estimate(a), MEAN),
                contains(s.estimate(paired), EFFECT),
                contains(ignoring_clusters(a), MEAN),
            )
        )
    mean, difference, naive = np.mean(hits, axis=0)
    assert COVERAGE[0] <= mean <= COVERAGE[1]
    assert COVERAGE[0] <= difference <= COVERAGE[1]
    assert naive < COVERAGE[0]


@pytest.mark.parametrize("seeds", [5, 8])
def test_coverage_of_bootstrap_intervals(seeds: int) -> None:
    """Bootstrap intervals have the nominal coverage for two arms with equal means."""
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(SIMULATIONS // 4):
        a, b = simulate(rng, seeds, (96,), mean_effect=0.0)
        middle = s.bootstrap(s.interquartile_mean, a, resamples=500)
        better = s.bootstrap(s.probability_of_improvement, a, b, resamples=500)
        hits.append((contains(middle, 0.5), contains(better, 0.5)))
    for coverage in np.mean(hits, axis=0):
        assert COVERAGE[0] <= coverage <= COVERAGE[1]


def test_an_estimate_with_seeds_only_is_a_t_interval() -> None:
    """If all tasks are equal, the interval is a t interval over seeds."""
    runs = np.array([0.2, 0.5, 0.4, 0.6])
    found = s.estimate([np.repeat(runs[:, None], 10, axis=1)])
    expected = stats.t.interval(0.95, 3, runs.mean(), stats.sem(runs))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.p_value == pytest.approx(stats.ttest_1samp(runs, 0).pvalue)
    assert found.seed_variance == pytest.approx(runs.var(ddof=1))
    assert found.task_variance == pytest.approx(0)


def test_an_estimate_with_tasks_only_is_a_t_interval() -> None:
    """If all seeds are equal, the interval is a t interval over tasks."""
    tasks = np.array([0.0, 1.0, 0.5, 1.0, 0.5])
    found = s.estimate([np.repeat(tasks[None], 6, axis=0)])
    expected = stats.t.interval(0.95, 4, tasks.mean(), stats.sem(tasks))
    assert (found.low, found.high) == pytest.approx(expected)


def test_unknown_intervals() -> None:
    """With one seed, one task or no variation, there is no interval."""
    for scores in (np.ones((1, 5)) / 3, np.array([[0.1], [0.2]]), np.full((3, 4), 0.5)):
        assert math.isnan(s.estimate([scores]).low)
        assert math.isnan(s.bootstrap(s.interquartile_mean, [scores]).low)


def test_a_bootstrap_without_variation_is_unknown() -> None:
    """If A beats B in every resample, the bootstrap has no interval."""
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(low, low + 0.2, (5, 30)) for low in (0.7, 0.1))
    found = s.bootstrap(s.probability_of_improvement, [a], [b], resamples=100)
    assert found.value == 1
    assert math.isnan(found.low)


def test_pooled_splits_weigh_tasks_alike() -> None:
    splits = [np.full((2, 30), 0.2), np.full((2, 10), 0.6)]
    assert s.run_scores(splits) == pytest.approx([0.3, 0.3])


def test_the_estimate_of_two_arms_is_that_of_their_difference() -> None:
    a, b = simulate(np.random.default_rng(0), 5, (48, 96))
    both, first, second = s.estimate(a, b), s.estimate(a), s.estimate(b)
    assert both.value == pytest.approx(first.value - second.value)
    assert both.seed_variance == pytest.approx(first.seed_variance + second.seed_variance)


def test_interquartile_mean() -> None:
    assert s.interquartile_mean(np.array([0.0, 0.3, 0.5, 0.9])) == pytest.approx(0.4)


def test_probability_of_improvement() -> None:
    """The probability counts ties as a half and equals that of the Mann-Whitney statistic."""
    found = s.probability_of_improvement(np.array([0.5, 0.7]), np.array([0.5, 0.6]))
    assert found == pytest.approx(0.625)
    expected = stats.mannwhitneyu([0.5, 0.7], [0.5, 0.6]).statistic / 4
    assert found == pytest.approx(expected)


def test_performance_profile() -> None:
    scores = [np.array([[0.0, 1.0], [0.5, 1.0]]), np.array([[0.0], [0.0]])]
    assert s.profile(scores, [0.0, 0.25, 0.3, 1.0]) == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3])


def test_area_is_the_mean_over_training() -> None:
    assert s.area([0, 10, 30], [[0.0, 1.0, 1.0], [0.5, 0.5, 0.5]]) == pytest.approx([5 / 6, 0.5])
    assert s.area([0], [0.25]) == 0.25


def test_equal_time() -> None:
    """B has seen half of its iterations when A, which is twice as fast, has finished."""
    a, b = np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 0.5], [0.0, 0.25]])
    seconds = np.array([[1.0, 1.0], [2.0, 2.0]])
    found = s.equal_time([a, b], seconds)
    # A rises from 0 to 1 in the second half of its time, and B is still at its first score.
    assert found.value == pytest.approx(0.25, abs=0.01)
    later = s.equal_time([a, b], np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert later.value == pytest.approx(0.25 * (1 - 0.375), abs=0.01)
    differences = np.array([0.25 * 0.5, 0.25 * 0.75])
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval()
    assert (later.low, later.high) == pytest.approx(tuple(expected), abs=0.02)
    unknown = s.equal_time([a[:1], np.array([[0.1, np.nan]])], seconds[:, :1])
    assert unknown.value == pytest.approx(0.25 - 0.1, abs=0.01)
    assert math.isnan(unknown.low)


def test_holm() -> None:
    """Sorted p-values are multiplied by 3, 2 and 1 and never decrease; NaN is ignored."""
    assert s.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    unknown, known = s.holm([math.nan, 0.02])
    assert math.isnan(unknown)
    assert known == 0.04


@given(st.lists(st.floats(0, 1), min_size=1))
def test_holm_is_between_no_correction_and_bonferroni(p_values: list[float]) -> None:
    for p, corrected in zip(p_values, s.holm(p_values), strict=True):
        assert p <= corrected <= min(1, len(p_values) * p) + 1e-12


def test_verdicts() -> None:
    above, below = s.Estimate(0.1, 0.05, 0.15), s.Estimate(-0.1, -0.15, -0.05)
    assert s.verdict(above, 0.01) == "holds here"
    assert s.verdict(below, 0.01) == "does not hold"
    assert s.verdict(above, 0.06) == "cannot be told"
    assert s.verdict(s.Estimate(0.1), math.nan) == "cannot be told"


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_power_is_that_of_simulated_tests(level: float) -> None:
    rng = np.random.default_rng(2)
    pairs = rng.normal(0.05, 0.06, (20_000, 8))
    expected = (stats.ttest_1samp(pairs, 0, axis=1).pvalue < level).mean()
    assert s.power(0.05, 8, 0.06**2, level=level) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("deviation", [0.002, 0.01, 0.02, 0.1])
@pytest.mark.parametrize("seeds", [2, 3, 16])
def test_power_is_an_integral(deviation: float, seeds: int) -> None:
    """The power equals the integral over the estimated variance, even close to 1."""
    shift, freedom = 0.05 / deviation * math.sqrt(seeds), seeds - 1
    bound = stats.t.ppf(0.975, freedom)

    def rejects(square: float) -> float:
        reach = bound * math.sqrt(square / freedom)
        either = stats.norm.sf(reach - shift) + stats.norm.cdf(-reach - shift)
        return stats.chi2.pdf(square, freedom) * either

    expected = integrate.quad(rejects, 0, np.inf, limit=500)[0]
    assert s.power(0.05, seeds, deviation**2) == pytest.approx(expected, abs=1e-4)


def test_seeds_needed() -> None:
    """The numbers match tables of the paired t test: 34 pairs for half a standard deviation."""
    assert s.seeds_needed(0.5, 1.0) == 34
    assert s.power(0.5, 33, 1.0) < s.POWER <= s.power(0.5, 34, 1.0)
    assert s.seeds_needed(0.05, 0.0) == 2
    assert s.seeds_needed(0.05, 0.01**2) == 3
    assert s.seeds_needed(0.05, 0.06**2, task_variance=0.05**2) is None
