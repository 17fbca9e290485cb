"""Comparison and output of `hgpo bench alfworld`. Speed is not tested."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_wrappers.errors import DataError
from hgpo_rllib.bench import alfworld as bench
from hgpo_rllib.bench.alfworld import Episode, bench_alfworld, compare_episodes
from hgpo_rllib.cli.main import app

EPISODE = Episode(
    commands=["look", "inventory"],
    answers=[("Hello.", ["look"], False), ("You see.", ["look"], False), ("None.", ["look"], True)],
    load_s=2.0,
    reset_s=1.0,
    steps_s=0.5,
)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_difference_in_any_part_of_an_answer_counts(part: int) -> None:
    """The observation, the admissible actions and `won` are all compared."""
    other = ("You see!", ["look", "help"], True)
    expected = EPISODE.answers[1]
    changed = (*expected[:part], other[part], *expected[part + 1 :])
    assert compare_episodes([EPISODE], [EPISODE])["differing_answers"] == 0
    fast = replace(EPISODE, answers=[EPISODE.answers[0], changed, EPISODE.answers[2]])
    assert compare_episodes([EPISODE], [fast])["differing_answers"] == 1


def test_ratios_say_how_many_times_as_long_textworld_takes() -> None:
    row = compare_episodes([EPISODE], [replace(EPISODE, steps_s=0.01)])
    assert (row["ratio"], row["textworld_steps_per_s"], row["steps_per_s"]) == (50, 4, 200)
    assert (row["won"], row["steps"]) == (1, 2)


@pytest.mark.parametrize("differing", [0, 1])
def test_a_difference_fails(monkeypatch: pytest.MonkeyPatch, differing: int) -> None:
    """A difference gives exit code 1 and the same output, as JSON or as tables."""
    found = {"steps": [{"games": "kitchens", "differing_answers": differing}]}
    monkeypatch.setattr(bench, "bench_alfworld", lambda *arguments: found)
    done = CliRunner().invoke(app, ["bench", "alfworld", "--json"])
    assert done.exit_code == differing
    assert json.loads(done.stdout)["steps"] == found["steps"]
    done = CliRunner().invoke(app, ["bench", "alfworld"])
    assert done.exit_code == differing
    assert "differing answers" in done.stdout


def test_too_few_games(generated_games: Path) -> None:
    with pytest.raises(DataError, match="9 games wanted, but there are 3"):
        bench_alfworld(generated_games, "train", official=9, generated=0)
    with pytest.raises(DataError, match="no games to compare"):
        bench_alfworld(None, "train", official=8, generated=0)
