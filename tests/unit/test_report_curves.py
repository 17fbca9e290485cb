"""Which runs make one curve, what it is called, and its band."""

import math
from pathlib import Path

import pytest

from hgpo_rllib.reporting.curves import Curve, band, curves_of
from hgpo_rllib.reporting.run_data import RunData


def run(metrics=(), name="a", seed=0, **config) -> RunData:
    settings = {"name": name, "seed": seed, **config}
    return RunData(Path(f"{name}-{seed}"), settings, "", list(metrics), [], [], None)


def names(*runs: RunData) -> dict[str, list[str]]:
    return {curve.name: [each.path.name for each in curve.runs] for curve in curves_of(runs)}


def test_runs_that_differ_in_the_seed_are_one_curve() -> None:
    assert names(run(seed=0, output="x"), run(seed=1, name="b")) == {"a": ["a-0", "b-1"]}


def test_a_curve_is_named_by_what_it_differs_in() -> None:
    runs = [
        run(name=str(index), seed=seed, algorithm={"gamma": 0.9, "estimator": estimator})
        for index, (estimator, seed) in enumerate([("hgpo", 0), ("gigpo", 0), ("hgpo", 1)])
    ]
    assert names(*runs) == {"hgpo": ["0-0", "2-1"], "gigpo": ["1-0"]}


def test_a_name_has_no_more_than_tells_curves_apart() -> None:
    runs = [
        run(name="x", iterations=iterations, algorithm={"weight_alpha": alpha})
        for iterations, alpha in ((1, 0), (2, 1))
    ]
    assert list(names(*runs)) == ["iterations=1", "iterations=2"]
    both = [
        run(name="x", learner={"lr": lr}, critic={"lr": other}) for lr, other in ((1, 3), (2, 3))
    ]
    assert list(names(*both)) == ["lr=1", "lr=2"]


def test_settings_of_one_name_are_told_apart_by_their_sections() -> None:
    values = ((1, 3), (2, 3), (1, 4))
    runs = [run(learner={"lr": first}, critic={"lr": second}) for first, second in values]
    assert list(names(*runs))[2] == "learner.lr=1 · critic.lr=4"


def test_equal_numbers_are_one_setting() -> None:
    assert len(names(run(a={"x": 1}), run(a={"x": 1.0}, seed=1))) == 1
    assert len(names(run(a={"x": 1}), run(a={"x": 1.5}, seed=1))) == 2


def test_settings_that_a_run_does_not_know_are_not_compared() -> None:
    for older, newer in ((0, 1), (1, 0)):
        runs = run(a={"x": 1}, seed=older), run(a={"x": 1, "new": 3}, seed=newer)
        assert len(names(*sorted(runs, key=lambda each: str(each.seed)))) == 1


def test_a_band_is_over_the_iterations_that_all_runs_have() -> None:
    def rows(*values: float | None) -> list[dict[str, float | None]]:
        return [{"iteration": i, "kl": value} for i, value in enumerate(values, start=1)]

    curve = Curve("a", [run(rows(0.2, 0.5, 0.1, 0.7)), run(rows(0.4, math.nan, 0.1))])
    values = band(curve, "kl")
    assert values.x == [1, 3]
    assert values.mean == pytest.approx([0.3, 0.1])
    assert values.error == pytest.approx([0.1, 0.0])  # sqrt(((0.1² + 0.1²) / 1) / 2)


def test_a_single_run_has_no_band() -> None:
    values = band(Curve("a", [run([{"iteration": 1, "kl": 0.2}])]), "kl")
    assert (values.x, values.mean, values.error) == ([1], [0.2], [0.0])
    assert band(Curve("a", [run()]), "kl").x == []
