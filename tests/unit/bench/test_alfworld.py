"""`hgpo bench alfworld`: what it compares and prints; speed is no test's business."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from env_wrappers.alfworld.translations import SETTING
from env_wrappers.errors import DataError
from hgpo_rllib.bench import alfworld as bench
from hgpo_rllib.bench.alfworld import Comparison, Crowd, EngineWorkload, Episode, bench_alfworld
from hgpo_rllib.cli.main import app

EPISODE = Episode(
    policy="random",
    commands=["look", "inventory"],
    answers=[("Hello.", ["look"], False), ("You see.", ["look"], False), ("None.", ["look"], True)],
    load_seconds=2.0,
    reset_seconds=1.0,
    step_seconds=0.5,
)


def _row(answers: list[bench.Answer]) -> Comparison:
    fast = replace(EPISODE, answers=answers, load_seconds=0.1, reset_seconds=0.2, step_seconds=0.01)
    return bench._summary("kitchens", 1, [EPISODE], [fast], cold_seconds=0.7)


CROWD = Crowd(
    environments=128,
    games=16,
    ready_seconds=2.5,
    megabytes=1.25,
    steps_per_second=1500.0,
    megabytes_after=1.75,
)


def test_engines_agree_on_a_game(
    generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three policies; the user's translations are left alone."""
    monkeypatch.setenv(SETTING, str(tmp_path))
    plan = EngineWorkload(
        generated_games, "valid_seen", genuine=1, generated=0, environments=8, max_steps=6
    )
    (row,), crowd = bench_alfworld(plan)
    assert (row.kind, row.games, row.episodes) == ("other rooms", 1, 3)
    assert row.differing_answers == 0
    assert 6 < row.steps <= 18
    assert row.genuine_load_seconds > row.genuine_reset_seconds > row.reset_seconds > 0
    assert row.genuine_steps_per_second > 0
    assert (crowd.environments, crowd.games) == (8, 1)
    assert crowd.ready_seconds > 0
    assert os.environ[SETTING] == str(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_difference_in_any_part_of_an_answer_counts(part: int) -> None:
    """Observation, admissible actions, won."""
    other = ("You see!", ["look", "help"], True)
    expected = EPISODE.answers[1]
    changed = (*expected[:part], other[part], *expected[part + 1 :])
    assert _row(EPISODE.answers).differing_answers == 0
    answers = [EPISODE.answers[0], changed, EPISODE.answers[2]]
    assert _row(answers).differing_answers == 1  # type: ignore[list-item]


def test_ratios_say_how_many_times_as_long_textworld_takes() -> None:
    row = _row(EPISODE.answers)
    assert (row.load_ratio, row.reset_ratio, row.step_ratio) == (20, 5, 50)
    assert (row.genuine_steps_per_second, row.steps_per_second) == (4, 200)
    assert (row.wins, row.steps, row.cold_load_seconds) == (1, 2, 0.7)


@pytest.mark.parametrize("differing", [0, 1])
def test_json_is_one_object_and_a_difference_fails(
    monkeypatch: pytest.MonkeyPatch, differing: int
) -> None:
    """Exit code 1, with the same output."""
    row = replace(_row(EPISODE.answers), differing_answers=differing)
    monkeypatch.setattr(bench, "bench_alfworld", lambda workload: ([row], CROWD))
    done = CliRunner().invoke(app, ["bench", "alfworld", "--json"])
    assert done.exit_code == differing
    result = json.loads(done.stdout)
    assert result["comparisons"] == [asdict(row)]
    assert result["crowd"] == asdict(CROWD)


def test_options_and_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    workloads = []

    def stand_in(workload: EngineWorkload) -> tuple[list[Comparison], Crowd]:
        workloads.append(workload)
        return [_row(EPISODE.answers)], CROWD

    monkeypatch.setattr(bench, "bench_alfworld", stand_in)
    options = ["--data", str(tmp_path), "--split", "train", "--genuine", "3", "--envs", "16"]
    done = CliRunner().invoke(app, ["bench", "alfworld", *options, "--generated", "5"])
    assert done.exit_code == 0
    assert workloads == [EngineWorkload(tmp_path, "train", genuine=3, generated=5, environments=16)]
    assert "kitchens" in done.stdout
    assert "128 environments over 16 games" in done.stdout


@pytest.mark.parametrize(
    ("genuine", "environments", "message"),
    [(9, 8, "games wanted, but there are 3"), (1, 12, "multiples of 8"), (1, 0, "multiples of 8")],
)
def test_what_cannot_be_had_is_said(
    generated_games: Path, genuine: int, environments: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        bench_alfworld(EngineWorkload(generated_games, "train", genuine, 0, environments))
