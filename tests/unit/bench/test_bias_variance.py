"""The bias / variance study: its task, its enumeration, and its findings."""

import functools
from math import factorial

import numpy as np
import pandas as pd
import pytest

from hgpo_rllib.bench import bias_variance
from hgpo_rllib.bench.bias_variance import COVARIANCE, FINDS, LENGTH, OPENS
from hgpo_rllib.errors import ConfigError

study = functools.cache(bias_variance.study)


def test_the_task() -> None:
    """Probabilities sum to 1; advantages have mean 0 and equal values computed by hand."""
    steps = bias_variance.trajectories()
    times = np.tile(np.arange(LENGTH), len(steps) // LENGTH)
    np.testing.assert_allclose(steps["probability"].groupby(times).sum(), 1)
    means = (steps["probability"] * steps["truth"]).groupby(times).sum()
    np.testing.assert_allclose(means, 0, atol=1e-12)
    truth = steps.groupby("choice")["truth"].first()
    value = {way: OPENS[way] * FINDS[way] * 10 + (1 - OPENS[way]) * 3 for way in OPENS}
    for way in OPENS:
        name = " ".join(way)
        assert truth[f"{name} open"] == pytest.approx(10 * FINDS[way] - value[way])
        assert truth[f"{name} leave"] == pytest.approx(3 - value[way])
    chances = np.exp(-steps["nll"]).groupby(steps["choice"]).first()
    assert chances["left"] == chances["left dark"] == 0.5
    assert chances["right dark enter"] == 1
    assert chances["right dark open"] == pytest.approx(OPENS["right", "dark"])
    assert chances["right dark leave"] == pytest.approx(1 - OPENS["right", "dark"])
    left, dark = value["left", "light"], value["left", "dark"]
    assert truth["left light"] == pytest.approx(0.95**2 * (left - dark) / 2)


def test_groups_are_all_there_with_their_chances() -> None:
    """Three draws from four give 20 groups with multinomial probabilities."""
    chance = np.array([0.1, 0.2, 0.3, 0.4])
    members, probability = bias_variance.groups(3, chance)
    assert len(members) == 20
    assert probability.sum() == pytest.approx(1)
    times = [np.bincount(row, minlength=4) for row in members]
    expected = [
        factorial(3) / np.prod([factorial(n) for n in row]) * np.prod(chance**row) for row in times
    ]
    np.testing.assert_allclose(probability, expected)


def test_enumeration_agrees_with_sampling() -> None:
    """GRPO's exact bias and deviation agree with 4,000 groups drawn at random."""
    exact = study(4)["everywhere"].loc["grpo"]
    steps, rng = bias_variance.trajectories(), np.random.default_rng(0)
    probability, reward = (steps[key].to_numpy()[::LENGTH] for key in ("probability", "reward"))
    draws = rng.choice(len(reward), (4000, 4), p=probability)
    advantage = reward[draws] - reward[draws].mean(axis=1, keepdims=True)
    rows = (draws.reshape(-1)[:, None] * LENGTH + np.arange(LENGTH)).reshape(-1)
    drawn = steps.iloc[rows].assign(estimate=advantage.reshape(-1).repeat(LENGTH))
    by_choice = drawn.groupby("choice")
    share = by_choice.size() / len(drawn)
    bias = by_choice["estimate"].mean() - by_choice["truth"].first()
    variance = by_choice["estimate"].var(ddof=0)
    assert np.sqrt(share @ bias**2) == pytest.approx(exact["bias"], rel=0.05)
    assert np.sqrt(share @ variance) == pytest.approx(exact["std"], rel=0.05)


@pytest.mark.parametrize("size", [4, 5])
def test_what_the_study_finds(size: int) -> None:
    """The ordering of Proposition 4.1 holds for clean comparisons, its zero covariance does not."""
    errors = study(size)
    clean = bias_variance.proposition(errors["grouped"])
    assert clean.pop("assumed: levels uncorrelated") is False
    assert all(clean.values())
    assert errors["grouped"].loc["level 2", "bias"] == pytest.approx(0, abs=1e-9)
    as_used = bias_variance.proposition(errors["levels"])
    assert as_used["assumed: bias falls with k"]
    assert not as_used["assumed: variance rises with k"]  # single steps get 0: no variance
    broken = {claim for claim, holds in as_used.items() if "concluded" in claim and not holds}
    assert broken == {"concluded: variance <= v_K"}
    names = ["hgpo_uncertainty", "hgpo_leave_one_out"]
    shrunk, fixed = errors["everywhere"].loc[names, ["bias", "std"]].to_numpy()
    assert (shrunk < fixed).all()


def made_up_errors() -> pd.DataFrame:
    """Return errors for which all of Proposition 4.1 holds, with K = 2."""
    names = ["level 0", "level 1", "level 2", "hgpo", COVARIANCE]
    return pd.DataFrame({"bias": [3, 2, 1, 2, 0], "std": [1, 2, 3, 2, 0]}, names, dtype=float)


def test_proposition_on_made_up_errors() -> None:
    """Each claim of Proposition 4.1 can fail alone."""
    good = made_up_errors()
    assert all(bias_variance.proposition(good).values())
    for name, measure, value, broken in (
        ("level 1", "bias", 4, "assumed: bias falls with k"),
        ("level 1", "std", 4, "assumed: variance rises with k"),
        (COVARIANCE, "bias", 0.1, "assumed: levels uncorrelated"),
        ("hgpo", "bias", 0.5, "concluded: b_K <= bias of HGPO"),
        ("hgpo", "bias", 3.5, "concluded: bias of HGPO <= b_0"),
        ("hgpo", "std", 0.57, "concluded: v_0/(K+1) <= variance"),  # the bound is sqrt(1/3) = 0.577
        ("hgpo", "std", 3.5, "concluded: variance <= v_K"),
    ):
        changed = good.copy()
        changed.loc[name, measure] = value
        claims = bias_variance.proposition(changed)
        assert [claim for claim, holds in claims.items() if not holds] == [broken]


def test_bounds_are_those_of_the_paper() -> None:
    """Bounds are not sorted: the variance's upper bound is v_K even where v_K is below v_0."""
    errors = made_up_errors()
    errors.loc["level 0", "std"], errors.loc["level 2", "std"] = 3.0, 1.0
    claims = bias_variance.proposition(errors)
    assert not claims["concluded: variance <= v_K"]
    assert claims["concluded: v_0/(K+1) <= variance"]  # 9 / 3 <= 4
    errors = made_up_errors()
    errors.loc["level 0", "bias"], errors.loc["level 2", "bias"] = 1.0, 3.0
    claims = bias_variance.proposition(errors)
    assert not claims["concluded: b_K <= bias of HGPO"]
    assert not claims["concluded: bias of HGPO <= b_0"]


@pytest.mark.parametrize("size", [1, 9])
def test_group_sizes_that_cannot_be_enumerated(size: int) -> None:
    """The error gives the allowed range."""
    with pytest.raises(ConfigError, match=f"must be 2 to 8, got {size}"):
        bias_variance.study(size)
