"""The choice of `best/` among the evaluations of a run."""

from pathlib import Path

import pytest

from hgpo_rllib.jsonl import ALL
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.metrics import selection_rate
from hgpo_rllib.run.trainer import Rows, Training


def evaluation(iteration: int, **rates: float) -> Rows:
    """Return the rows of an evaluation; `all` is the mean over splits of equal size."""
    rates[ALL] = sum(rates.values()) / len(rates)
    return [
        {"iteration": iteration, "split": split, "success_rate": rate}
        for split, rate in rates.items()
    ]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"dev": 0.25, "test": 1.0}, 0.25),
        ({"valid_seen": 0.5, "valid_unseen": 0.0}, 0.5),
        ({"dev_products": 0.25, "test_products": 1.0}, 0.25),
        ({"kitchens": 0.25, "halls": 0.75, "test": 0.0}, 0.5),
        ({"released_eval": 0.75}, 0.75),
        ({"test": 0.75}, 0.75),
        ({"test": 0.75, "valid_unseen": 0.25}, 0.5),
        ({"household.valid_unseen": 0.5, "crafting.test": 1.0, "crafting.dev": 0.25}, 0.25),
    ],
)
def test_the_rate_that_chooses(rates: dict[str, float], expected: float) -> None:
    """Splits for final numbers do not count beside another split; alone, all episodes do."""
    assert selection_rate(evaluation(3, **rates)) == expected


def test_a_policy_that_is_better_on_test_alone_is_not_the_best(tmp_path: Path) -> None:
    """`dev` decides, also where all episodes together would decide otherwise."""
    training = object.__new__(Training)
    training.directory = RunDirectory(tmp_path)
    evaluations = [
        (evaluation(0, dev=0.5, test=0.25), True),  # the first
        (evaluation(1, dev=0.25, test=1.0), False),
        (evaluation(2, dev=0.5, test=1.0), False),  # as good is not better
        (evaluation(3, dev=0.75, test=0.0), True),
    ]
    for rows, best in evaluations:
        training.directory.append(training.directory.evaluations, rows)
        assert training._is_best(rows) == best
    assert not training._is_best([])
