"""What a sweep makes of the runs that have finished."""

import csv
import io
import json
import math
from pathlib import Path

import matplotlib as mpl
import pytest
from rich.console import Console

from hgpo_rllib.reporting.heat_map import figure_of
from hgpo_rllib.reporting.stats import Estimate
from hgpo_rllib.reporting.style import STYLE
from hgpo_rllib.reporting.sweep_results import (
    Outcome,
    Trials,
    heat_map,
    is_finished,
    read_outcome,
    results_table,
    summarize,
    write_results,
)
from tests.unit.reporting_rows import evaluation_row

ALPHA = "algorithm.weight_alpha"
K = "algorithm.context_length"


def outcome(after: float, before: float = 0.2, run: str = "run", iterations: int = 10) -> Outcome:
    return Outcome(run, Estimate(before, 0.05), Estimate(after, 0.05), iterations, 40)


@pytest.fixture
def trials() -> Trials:
    """Two by two points of two seeds; one point and one seed are missing, one run ended early."""
    return [
        ({ALPHA: 0, K: 2}, 0, outcome(0.3, 0.2, "01")),
        ({ALPHA: 0, K: 2}, 1, outcome(0.5, 0.2, "02", 4)),
        ({ALPHA: 0, K: 4}, 0, outcome(0.6, 0.4, "03")),
        ({ALPHA: 1, K: 2}, 0, outcome(0.9, 0.1, "05")),
        ({ALPHA: 1, K: 2}, 1, outcome(0.9, 0.3, "06")),
    ]


def test_first_and_last_evaluation_of_a_run(tmp_path: Path) -> None:
    rows = [
        evaluation_row(iteration, split, rate, 0.03, 100)
        for iteration, rate in ((0, 0.2), (5, 0.4), (10, 0.6))
        for split in ("all", "valid_seen")
    ]
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert not is_finished(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    assert is_finished(tmp_path)
    found = read_outcome(tmp_path)
    assert (found.before, found.after) == (Estimate(0.2, 0.03), Estimate(0.6, 0.03))
    assert (found.iterations, found.episodes) == (10, 100)


def test_errors_are_over_seeds(trials: Trials) -> None:
    both, single, same = summarize(trials)
    assert both.after.value == pytest.approx(0.4)
    assert both.after.error == pytest.approx(0.1)  # sqrt(((0.1² + 0.1²) / 1) / 2)
    assert both.gain.value == pytest.approx(0.2)
    assert (single.runs, single.after.error) == (1, None)
    assert same.after.error == pytest.approx(0)
    assert same.gain.error == pytest.approx(0.1), "each run is compared with its own start"


def test_table(trials: Trials) -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(results_table(trials))
    lines = stream.getvalue().splitlines()
    assert "mean ± standard error over seeds" in lines[0]
    assert "weight_alpha" in lines[3], "a swept key is there whole"
    (row,) = [line for line in lines if "40.0 % ± 10.0" in line]
    assert [part.strip() for part in row.strip("│").split("│")] == [
        "0",
        "2",
        "2",
        "4 to 10",
        "20.0 % ± 0.0",
        "40.0 % ± 10.0",
        "+20.0 ± 10.0",
    ]


def test_cells_are_where_their_values_are(trials: Trials) -> None:
    data = heat_map(trials, (ALPHA, K))
    assert (data.rows, data.columns, data.runs) == (["0", "1"], ["2", "4"], [1, 2])
    means = [[cell.value for cell in row] for row in data.cells]
    assert means == [[pytest.approx(0.4), 0.6], [pytest.approx(0.9), None]]
    turned = heat_map(trials, (K, ALPHA))
    assert [[cell.value for cell in row] for row in turned.cells] == [
        [pytest.approx(0.4), pytest.approx(0.9)],
        [0.6, None],
    ]


def test_one_key_is_one_row_over_all_runs(trials: Trials) -> None:
    data = heat_map(trials, (ALPHA,))
    assert (data.rows, data.columns) == ([""], ["0", "1"])
    assert data.cells[0][0].value == pytest.approx((0.3 + 0.5 + 0.6) / 3)
    with mpl.rc_context(STYLE):
        (axes, _) = figure_of(data).axes
    assert (axes.get_xlabel(), axes.get_ylabel(), len(axes.get_yticks())) == (ALPHA, "", 0)


def test_picture_says_what_the_cells_are(trials: Trials) -> None:
    with mpl.rc_context(STYLE):
        (axes, _) = figure_of(heat_map(trials, (ALPHA, K))).axes
    assert [text.get_text() for text in axes.texts] == [
        "40.0 %\n± 10.0",
        "60.0 %",
        "90.0 %\n± 0.0",
        "n/a",
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (K, ALPHA)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "4"]
    assert "iterations: 4 to 10" in axes.get_title(loc="left")
    assert "runs per cell: 1 to 2" in axes.get_title(loc="left")
    image = axes.get_images()[0].get_array()
    assert image[1][0] == pytest.approx(0.9)
    assert math.isnan(image.data[1][1])


@pytest.mark.parametrize(
    ("keys", "pictures"),
    [
        ((ALPHA,), {"heat_map-algorithm_weight_alpha.png"}),
        ((ALPHA, K), {"heat_map-algorithm_weight_alpha-algorithm_context_length.png"}),
        (("a.x", "b.x", "b.y"), {f"heat_map-{p}.png" for p in ("a_x-b_x", "a_x-b_y", "b_x-b_y")}),
    ],
)
def test_files(tmp_path: Path, keys: tuple[str, ...], pictures: set[str]) -> None:
    trials = [(dict.fromkeys(keys, value), 7, outcome(0.5)) for value in ("x", None)]
    files = write_results(tmp_path, trials)
    assert sorted(files) == sorted(tmp_path.iterdir()), "no partial file is left"
    assert {file.name for file in files} == pictures | {"results.csv", "results.json"}
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "results.csv").open()))
    assert [row[keys[0]] for row in rows] == ["x", "null"]
    assert {(row["seed"], row["before"], row["after"]) for row in rows} == {("7", "0.2", "0.5")}
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["keys"] == list(keys)
    assert [point["after"] for point in content["points"]] == 2 * [
        {"mean": 0.5, "standard_error": None}
    ]
    assert [trial["point"][keys[0]] for trial in content["trials"]] == ["x", None]
