"""The bias / variance study: its task, its enumeration, and what it finds."""

from math import factorial

import numpy as np
import pytest

from hgpo_rllib.advantages import bias_variance as study
from hgpo_rllib.advantages.bias_variance import FINDS, OPENS, Error


def test_the_task() -> None:
    """Probabilities sum to 1; advantages have mean 0 under the policy, and are right by hand."""
    paths = study.paths()
    assert sum(path.probability for path in paths) == pytest.approx(1)
    truth = study.true_advantages(paths)
    for step in range(study.LENGTH):
        assert sum(p.probability * truth[p.choices[step]] for p in paths) == pytest.approx(0)
    value = {way: OPENS[way] * FINDS[way] * 10 + (1 - OPENS[way]) * 3 for way in OPENS}
    for way in OPENS:
        name = " ".join(way)
        assert truth[f"{name} open"] == pytest.approx(10 * FINDS[way] - value[way])
        assert truth[f"{name} leave"] == pytest.approx(3 - value[way])
    left, dark = value["left", "light"], value["left", "dark"]
    assert truth["left light"] == pytest.approx(0.95**2 * (left - dark) / 2)


def test_groups_are_all_there_with_their_chances() -> None:
    """Like throwing three dice with four sides: 20 outcomes, multinomial probabilities."""
    chance = np.array([0.1, 0.2, 0.3, 0.4])
    members, probability = study.groups(4, 3, chance)
    assert len(members) == 20
    assert probability.sum() == pytest.approx(1)
    times = [np.bincount(row, minlength=4) for row in members]
    expected = [
        factorial(3) / np.prod([factorial(n) for n in row]) * np.prod(chance**row) for row in times
    ]
    np.testing.assert_allclose(probability, expected)


def test_enumeration_agrees_with_sampling() -> None:
    """Mean and standard deviation of GRPO's estimate, against 4,000 groups drawn at random."""
    exact = study.errors(4, {"grpo": lambda s: study.by_name("grpo", s)}, hall_only=False)["grpo"]
    paths, rng = study.paths(), np.random.default_rng(0)
    truth = study.true_advantages(paths)
    draws = rng.choice(len(paths), (4000, 4), p=[path.probability for path in paths])
    returns = np.array([path.reward for path in paths])[draws]
    advantage = returns - returns.mean(axis=1, keepdims=True)
    seen: dict[str, list[float]] = {}
    for path, value in zip(draws.reshape(-1), advantage.reshape(-1), strict=True):
        for choice in paths[path].choices:
            seen.setdefault(choice, []).append(value)
    share = np.array([len(values) for values in seen.values()]) / (4 * draws.size)
    bias = np.array([np.mean(values) - truth[choice] for choice, values in seen.items()])
    variance = np.array([np.var(values) for values in seen.values()])
    assert np.sqrt(share @ bias**2) == pytest.approx(exact.bias, rel=0.05)
    assert np.sqrt(share @ variance) == pytest.approx(exact.deviation, rel=0.05)


@pytest.mark.parametrize("size", [4, 5])
def test_what_the_study_finds(size: int) -> None:
    """Proposition 4.1: its ordering holds for clean comparisons, its zero covariance does not."""
    result = study.study(size)
    clean = result.claims["grouped"]
    assert clean.pop("assumed: levels uncorrelated") is False
    assert all(clean.values())
    assert result.grouped["level 2"].bias == pytest.approx(0, abs=1e-9)  # the others of one history
    as_used = result.claims["levels"]
    assert as_used["assumed: bias falls with k"]
    assert not as_used["assumed: std rises with k"]  # lonely steps get 0, which does not vary
    names = ("hgpo_uncertainty", "hgpo_leave_one_out")
    shrunk, fixed = (result.everywhere[name] for name in names)
    assert shrunk.bias < fixed.bias
    assert shrunk.deviation < fixed.deviation


def test_proposition_on_made_up_errors() -> None:
    """Each claim can fail on its own."""
    good = {
        "level 0": Error(3, 1),
        "level 1": Error(2, 2),
        "level 2": Error(1, 3),
        "hgpo": Error(2, 2),
    }
    assert all(study.proposition(good, correlation=0.0).values())
    for change, correlation, broken in (
        ({"level 1": Error(4, 2)}, 0.0, "assumed: bias falls with k"),
        ({"level 1": Error(2, 4)}, 0.0, "assumed: std rises with k"),
        ({}, 0.1, "assumed: levels uncorrelated"),
        ({"hgpo": Error(0.5, 2)}, 0.0, "concluded: HGPO's bias between"),
        ({"hgpo": Error(2, 3.5)}, 0.0, "concluded: HGPO's std between"),
    ):
        claims = study.proposition(good | change, correlation)
        assert [claim for claim, holds in claims.items() if not holds] == [broken]


@pytest.mark.parametrize("size", [1, 9])
def test_group_sizes_that_cannot_be_enumerated(size: int) -> None:
    """The error gives the range."""
    with pytest.raises(ValueError, match=f"must be 2 to 8, got {size}"):
        study.study(size)
