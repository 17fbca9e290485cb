"""Unreadable files of runs, sweeps and evaluations raise a one-line error with the file name."""

import json
from pathlib import Path

import pytest

from hgpo_rllib.results import (
    ResultsError,
    load_evaluation,
    load_run,
    load_runs,
    load_sweep,
)
from tests.unit.reporting.reporting_rows import EPISODES, write_jsonl


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no such directory"):
        load_run(tmp_path / "missing")
    with pytest.raises(ResultsError, match=r"not a run directory \(no config\.yaml in it\)"):
        load_run(tmp_path)
    with pytest.raises(ResultsError, match="no run directory given"):
        load_runs([])
    with pytest.raises(ResultsError, match=r"not a sweep directory \(no sweep\.json in it\)"):
        load_sweep(tmp_path)
    with pytest.raises(ResultsError, match="is not an evaluation"):
        load_evaluation(tmp_path)


def test_a_damaged_line_in_the_middle(run_dir: Path) -> None:
    text = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text('{"torn\n' + text)
    with pytest.raises(ResultsError, match=r"metrics\.jsonl: line 1 is not a JSON object"):
        load_run(run_dir)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"step": 1}, "metrics.jsonl: a line without 'iteration': not a file of this kind"),
        ({"iteration": 1, "kl": "low"}, "metrics.jsonl: 'kl' has a value that is not float64"),
        ({"iteration": 1, "kl": [1.0]}, "metrics.jsonl: 'kl' has a value that is not float64"),
        ({"iteration": "x"}, "metrics.jsonl: 'iteration' has a value that is not int64"),
        ({"iteration": 10**20}, "metrics.jsonl: 'iteration' has a value that is not int64"),
    ],
)
def test_a_file_of_another_shape(run_dir: Path, row: object, problem: str) -> None:
    (run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ResultsError) as error:
        load_run(run_dir)
    assert str(error.value).endswith(problem)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("metrics.jsonl", {"iteration": 1, "level_size_shares": [[0.5]]}),
        ("evaluation.jsonl", {"iteration": 1, "split": "all", "by_task_type": [1]}),
    ],
)
def test_nested_values_of_another_shape(run_dir: Path, name: str, row: object) -> None:
    (run_dir / name).write_text(json.dumps(row) + "\n")
    with pytest.raises(ResultsError, match="its files are not those of a run"):
        load_run(run_dir)


def test_other_episodes(run_dir: Path) -> None:
    write_jsonl(run_dir / "episodes" / "iteration_0009.jsonl", [{"format": "hgpo-episode-2"}])
    run = load_run(run_dir)
    with pytest.raises(ResultsError, match="episode format 'hgpo-episode-2' is not"):
        run.episodes  # noqa: B018


@pytest.mark.parametrize("steps", [None, 5, "steps", {"time": 0}, [1], [None]])
def test_episodes_without_steps(run_dir: Path, steps: object) -> None:
    file = run_dir / "episodes" / "iteration_0009.jsonl"
    write_jsonl(file, [EPISODES[0] | {"steps": steps}])
    with pytest.raises(ResultsError, match="an episode without a list of steps"):
        load_run(run_dir, [9]).steps  # noqa: B018


def test_other_files_are_no_episodes(run_dir: Path) -> None:
    for name in ("iteration_old.jsonl", "iteration_0004 (copy).jsonl.gz", "iteration_5.txt"):
        (run_dir / "episodes" / name).touch()
    assert list(load_run(run_dir).episode_files) == [4]


@pytest.mark.parametrize(
    "content",
    [b"a: [1\nb: 2", b"\xff", b"name: 2026-02-30", b"a: " + b"[" * 5000],
    ids=["torn", "not text", "no such date", "deep"],
)
def test_an_error_is_one_line(run_dir: Path, content: bytes) -> None:
    (run_dir / "config.yaml").write_bytes(content)
    with pytest.raises(ResultsError, match=r"config\.yaml: not YAML") as error:
        load_run(run_dir)
    assert "\n" not in str(error.value)


def test_deeply_nested_json(run_dir: Path) -> None:
    for name, problem in (
        ("metrics.jsonl", "line 1 is not a JSON object"),
        ("summary.json", "not JSON"),
    ):
        file = run_dir / name
        file.write_text("[" * 100_000 + "\n{}\n")
        with pytest.raises(ResultsError, match=problem):
            load_run(run_dir)
        file.unlink()


def test_a_grid_of_another_shape(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"axes": 1}')
    with pytest.raises(ResultsError, match="not the grid of a sweep"):
        load_sweep(tmp_path)


def test_an_evaluation_without_protocol(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"format": "hgpo-evaluation-1"}')
    with pytest.raises(ResultsError, match=r"summary\.json: it has no protocol$"):
        load_evaluation(tmp_path)
