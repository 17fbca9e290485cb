"""Statistics of `hgpo bench credit`, on simulated data whose true values are known."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from hgpo_rllib.bench import fidelity
from hgpo_rllib.bench.fidelity import (
    Interval,
    Result,
    compare,
    correlation,
    interval,
    measure,
    reliability,
    resample,
)

Floats = np.ndarray


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "RESAMPLES", 100)


def simulate(steps: int, noise: float, seed: int = 0) -> tuple[Floats, Floats, Floats, Floats]:
    """Return estimates that correlate by 0.6, noisy truth, exact truth, and standard errors."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal(steps) + 0.5
    estimate = 0.6 * (truth - 0.5) / 2 + 0.8 * rng.standard_normal(steps)
    error = noise * rng.uniform(0, 2, steps)
    return estimate[:, None], truth + error * rng.standard_normal(steps), truth, error


def test_the_correction_recovers_the_correlation_with_the_exact_truth() -> None:
    estimate, noisy, truth, error = simulate(40_000, noise=2)
    found = measure(estimate, noisy, error)
    exact = measure(estimate, truth, 0 * error)
    assert exact["pearson"] == exact["pearson_corrected"] == pytest.approx(0.6, abs=0.01)
    assert found["pearson"] == pytest.approx(0.6 * math.sqrt(4 / (4 + 4 * 4 / 3)), abs=0.02)
    assert found["pearson_corrected"] == pytest.approx(0.6, abs=0.02)
    assert found["mse"] == pytest.approx(exact["mse"], abs=0.15)
    assert found["scale"] == pytest.approx(exact["scale"], abs=0.05)
    assert reliability(noisy, error) == pytest.approx(4 / (4 + 4 * 4 / 3), abs=0.01)


def test_nothing_is_known_of_noise_alone() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(20)
    assert math.isnan(reliability(noise, np.full(20, 2.0)))
    assert math.isnan(reliability(np.ones(5), np.zeros(5)))
    found = measure(rng.standard_normal((20, 1)), noise, np.full(20, 2.0))
    assert np.isnan(found["pearson_corrected"]).all()
    assert np.isnan(found["sign"]).all(), "no true advantage is significant"


def test_measures_of_a_small_sample() -> None:
    """All measures of a small sample equal values computed by hand."""
    truth = np.array([3.0, -1.0, -4.0, 2.0])
    error = np.array([1.0, 1.0, 1.0, 0.0])
    estimate = np.array([[1.0, 2.0], [0.0, 0.0], [-1.0, -8.0], [0.0, -4.0]])
    found = measure(estimate, truth, error)
    # The second step is not significant; an estimate of 0 counts one half.
    assert found["sign"] == pytest.approx([(1 + 1 + 0.5) / 3, (1 + 1 + 0) / 3])
    assert found["scale"] == pytest.approx([7 / 2, (6 + 32 - 8) / 84])
    assert found["bias"][0] == pytest.approx(0.0)
    squares = 0.5**2 + 1 + 0.5**2 + 2**2
    assert found["mse"][0] == pytest.approx(squares / 4 - 3 / 4)
    assert found["variance"][0] == pytest.approx(squares / 4 - 3 / 4)  # its bias is 0
    # The second column: errors of -16/7, 1, 8/7 and -24/7, with the mean -25/28.
    deviations = np.array([-39, 53, 57, -71]) / 28
    assert found["variance"][1] == pytest.approx((deviations**2).mean() - 3 / 4)
    assert found["pearson"] == pytest.approx(
        [np.corrcoef(column, truth)[0, 1] for column in estimate.T]
    )
    # Ranks of the second column: 4, 3, 1, 2; of the truth: 4, 2, 1, 3.
    assert found["spearman"][1] == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_the_bias_is_that_after_scaling() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    found = measure(np.ones((3, 1)), truth, np.zeros(3))
    assert found["scale"] == pytest.approx(2.0)
    assert found["bias"] == pytest.approx(0.0)
    found = measure(np.array([[0.0], [0.0], [2.0]]), truth, np.zeros(3))
    assert found["bias"] == pytest.approx((3 - 6) / 3)


def test_an_estimate_without_information() -> None:
    truth = np.array([1.0, -2.0, 3.0])
    found = measure(np.zeros((3, 1)), truth, np.zeros(3))
    assert np.isnan(found["pearson"]).all()
    assert found["sign"] == pytest.approx(0.5)
    assert found["scale"] == 0
    assert found["mse"] == pytest.approx(14 / 3)
    assert np.isnan(correlation(np.full((3, 1), 0.1), truth)).all()


def test_whole_groups_are_resampled() -> None:
    group = np.array([3, 0, 3, 1, 0, 3])
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        counts = np.bincount(resample(group, rng), minlength=6)
        for number in (0, 1, 3):
            assert len(set(counts[group == number])) == 1
        assert counts[[1, 3, 0]].sum() == 3, "as many groups as there are"
        seen.add(tuple(counts))
    assert len(seen) > 5


def test_intervals_cover_the_truth_although_steps_of_a_group_are_alike() -> None:
    """Resampling single steps instead of groups would cover it in half of the cases."""
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(40), 6)
        shared = rng.standard_normal((2, 40))[:, group]
        own = rng.standard_normal((2, 240)) * 0.3
        truth = shared[0] + own[0]
        estimate = 0.6 * truth + 0.8 * (shared[1] + own[1])
        found = interval(compare({"a": estimate}, truth, np.zeros(240), group)["pearson", "a"])
        covered += found.low <= 0.6 <= found.high  # type: ignore[operator]
    assert covered >= 34  # expected: 38 less a few, as there are only 40 groups


def test_differences_are_paired() -> None:
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(50), 4)
    truth = rng.standard_normal(200)
    first = truth + rng.standard_normal(200)
    estimates = {
        "hgpo": first,
        "gigpo": first + 0.1 * rng.standard_normal(200),
        "grpo": -first,
    }
    found = compare(estimates, truth, np.zeros(200), group)["pearson"]
    rows = {name: interval(found[name]) for name in estimates}
    close, far, other = (interval(found[a] - found[b]) for a, b in fidelity.PAIRS)
    assert close.value == pytest.approx(rows["hgpo"].value - rows["gigpo"].value)
    assert far.value == pytest.approx(2 * rows["hgpo"].value)
    assert other.value == pytest.approx(rows["gigpo"].value - rows["grpo"].value)
    assert close.high - close.low < (rows["hgpo"].high - rows["hgpo"].low) / 3


def test_intervals_are_percentiles_or_unknown() -> None:
    draws = np.arange(201.0)
    known = interval(pd.Series([50.0, *draws]))
    assert known == (50.0, 5.0, 195.0)
    assert str(known) == "50.000 [5.000, 195.000]"
    mostly = interval(pd.Series([50.0, *draws[:101], *np.full(100, np.nan)]))
    assert mostly == (50.0, 2.5, 97.5)
    rarely = pd.Series([50.0, *draws[:100], *np.full(101, np.nan)])
    assert interval(rarely) == (None, None, None)
    unknown = interval(pd.Series([1.0, *np.full(201, np.nan)]))
    assert unknown == interval(pd.Series([np.nan, *draws])) == (None, None, None)
    assert str(unknown) == "–"
    assert json.dumps(unknown) == "[null, null, null]"


def test_error_bars_go_down_and_up_from_the_value() -> None:
    """A value below its interval has no lower bar, an unknown one no bars."""
    found = [Interval(1.0, 0.5, 3.0), Interval(1.0, 1.2, 3.0), Interval(None, None, None)]
    value, error = fidelity._error_bars(found)
    np.testing.assert_array_equal(value, [1.0, 1.0, math.nan])
    np.testing.assert_array_equal(error, [[0.5, 0.0, math.nan], [2.0, 2.0, math.nan]])


def sample(steps: int = 120) -> Result:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(steps)
    names = ("hgpo", "gigpo", "grpo", "rloo")
    noise = dict(zip(names, (0.2, 1.0, 3.0, 3.0), strict=True))
    size = np.where(np.arange(steps) % 3, 2, 1)
    estimates = {name: truth + noise[name] * rng.standard_normal(steps) for name in names}
    levels = {"k = 0": truth, "k = 1": np.where(size > 1, truth, -9.0), "oracle": truth}
    sizes = {"k = 0": size + 1, "k = 1": size, "oracle": np.ones(steps, int)}
    return Result(
        protocol={},
        group=np.repeat(np.arange(steps // 4), 4).tolist(),
        member=[0] * steps,
        time=[0] * steps,
        q=(truth + 1).tolist(),
        v=[1.0] * steps,
        error=[0.1] * steps,
        estimates={name: column.tolist() for name, column in estimates.items()},
        levels={name: column.tolist() for name, column in levels.items()},
        sizes={name: column.tolist() for name, column in sizes.items()},
    )


def test_tables() -> None:
    found = fidelity.tables(sample())
    (facts,) = found["true advantages"]
    assert facts["steps"] == 120
    assert facts["groups"] == 30
    assert facts["standard error"] == pytest.approx(0.1)
    assert 0.95 < facts["reliability"] < 1
    first, *_ = found["correlation with the true advantage"]
    assert first["estimator"] == "hgpo"
    assert first["pearson"].low > 0.9
    assert first["pearson_corrected"].value > first["pearson"].value
    difference = {row["measure"]: row for row in found["differences of estimators"]}
    assert list(difference) == ["pearson", "pearson_corrected", "spearman", "sign", "mse"]
    assert difference["pearson"]["hgpo - grpo"].low > 0
    assert difference["mse"]["hgpo - grpo"].high < 0


def test_facts_of_the_true_advantages() -> None:
    """The error is the root mean square; signs are known beyond 2.576 errors."""
    result = sample().model_copy(update={"error": [0.1, 0.7] * 60, "q": [1.0 + 1.5, 3.0] * 60})
    (facts,) = fidelity.tables(result)["true advantages"]
    assert facts["standard error"] == pytest.approx(0.5)
    assert facts["standard deviation"] == pytest.approx(0.25 * math.sqrt(120 / 119))
    assert facts["significant"] == 1.0
    near = result.model_copy(update={"q": [1.0 + 1.5, 1.0 + 1.8] * 60})
    (facts,) = fidelity.tables(near)["true advantages"]
    assert facts["significant"] == 0.5, "1.8 is less than 2.576 times 0.7"


def test_levels_are_compared_over_the_steps_that_they_compare() -> None:
    """The Oracle compares no step here, so it has no row."""
    found = fidelity.tables(sample())["by depth of history"]
    assert [(row["level"], row["compared"]) for row in found] == [("k = 0", 1.0), ("k = 1", 2 / 3)]
    for row in found:
        assert row["own"].value == pytest.approx(1, abs=0.02), "not the -9 of the others"
        assert row["own"].value > row["hgpo"].value > row["gigpo"].value > row["grpo"].value
    assert isinstance(found[0]["own"], Interval)
