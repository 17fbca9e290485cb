"""Tables and pictures that a sweep makes of its finished runs."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from rich.console import Console

from hgpo_rllib.reporting.style import STYLE
from hgpo_rllib.reporting.sweep_results import heat_map, results_table, summarize, write_results
from hgpo_rllib.results import Sweep, load_sweep
from tests.unit.reporting.reporting_rows import evaluation_row, write_jsonl

ALPHA = "algorithm.weight_alpha"
K = "algorithm.context_length"
Trial = tuple[dict[str, Any], int, str, float, float, int]


def make_sweep(folder: Path, keys: Sequence[str], trials: Sequence[Trial]) -> Sweep:
    """Write a sweep of finished trials and load it."""
    content = {
        "axes": [{"key": key} for key in keys],
        "trials": [{"name": name, "point": point} for point, _, name, *_ in trials],
    }
    for _, seed, name, before, after, iterations in trials:
        rows = [
            evaluation_row(iteration, split, rate, 0.05, 40)
            for iteration, rate in ((0, before), (1, 0.33), (iterations, after))
            for split in ("all", "valid_seen")
        ]
        write_jsonl(folder / name / "evaluation.jsonl", rows)
        (folder / name / "config.yaml").write_text(f"seed: {seed}\n")
        (folder / name / "summary.json").write_text("{}")
    (folder / "sweep.json").write_text(json.dumps(content))
    return load_sweep(folder)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Return a sweep of 2 x 2 points with two seeds.

    One point and one seed are missing, and one run ended early.
    """
    return make_sweep(
        tmp_path,
        (ALPHA, K),
        [
            ({ALPHA: 0, K: 2}, 0, "01", 0.2, 0.3, 10),
            ({ALPHA: 0, K: 2}, 1, "02", 0.2, 0.5, 4),
            ({ALPHA: 0, K: 4}, 0, "03", 0.4, 0.6, 10),
            ({ALPHA: 1, K: 2}, 0, "05", 0.1, 0.9, 10),
            ({ALPHA: 1, K: 2}, 1, "06", 0.3, 0.9, 10),
        ],
    )


def test_a_trial_that_goes_on_has_no_part(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep.trials["run"].tolist() == ["01", "02", "03", "05", "06"]
    (tmp_path / "02" / "summary.json").unlink()
    again = load_sweep(tmp_path)
    assert again.trials["run"].tolist() == ["01", "03", "05", "06"]
    assert again.runs["finished"].tolist() == [True, False, True, True, True]
    assert again.trials["iteration"].tolist() == [10, 10, 10, 10]


def test_errors_are_over_seeds(sweep: Sweep) -> None:
    both, single, same = summarize(sweep.trials, sweep.keys).to_dict("records")
    assert both["after"] == pytest.approx(0.4)
    assert both["after_error"] == pytest.approx(0.1)  # sqrt(((0.1² + 0.1²) / 1) / 2)
    assert both["gain"] == pytest.approx(0.2)
    assert single["runs"] == 1
    assert math.isnan(single["after_error"])
    assert same["after_error"] == pytest.approx(0)
    assert same["gain_error"] == pytest.approx(0.1), "each run is compared with its own start"


def test_table(sweep: Sweep) -> None:
    stream = io.StringIO()
    Console(file=stream, width=120).print(results_table(sweep))
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


def test_swept_iterations(tmp_path: Path) -> None:
    """The table and the file have the swept setting as well as the iterations that were trained."""
    trials = [({"iterations": n}, 0, f"0{n}", 0.2, 0.5, 4) for n in (4, 8)]
    sweep = make_sweep(tmp_path, ("iterations",), trials)
    header, *rows = [
        [str(cell) for cell in column.cells] for column in results_table(sweep).columns
    ]
    assert header == ["4", "8"]
    assert ["4", "4"] in rows
    write_results(tmp_path, sweep)
    found = [*csv.DictReader((tmp_path / "results.csv").open())]
    assert [(row["iterations"], row["iteration"]) for row in found] == [("4", "4"), ("8", "4")]


def picture(sweep: Sweep, *keys: str) -> Any:
    """Return the axes of the heat map over these keys, and the values in its cells."""
    with mpl.rc_context(STYLE):
        (axes, _) = heat_map(summarize(sweep.trials, keys)).axes
    return axes, axes.get_images()[0].get_array().filled(math.nan)


def test_cells_are_where_their_values_are(sweep: Sweep) -> None:
    axes, cells = picture(sweep, ALPHA, K)
    assert cells == pytest.approx(np.array([[0.4, 0.6], [0.9, math.nan]]), nan_ok=True)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1"]
    axes, cells = picture(sweep, K, ALPHA)
    assert cells == pytest.approx(np.array([[0.4, 0.9], [0.6, math.nan]]), nan_ok=True)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["2", "4"]


def test_picture_says_what_the_cells_are(sweep: Sweep) -> None:
    axes, _ = picture(sweep, ALPHA, K)
    assert [text.get_text() for text in axes.texts] == [
        "40.0 %\n± 10.0",
        "60.0 %",
        "90.0 %\n± 0.0",
        "n/a",
    ]
    assert [text.get_color() for text in axes.texts] == ["white", "white", "black", "black"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (K, ALPHA)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "4"]
    assert "iterations: 4 to 10" in axes.get_title(loc="left")
    assert "runs per cell: 1 to 2" in axes.get_title(loc="left")


@pytest.mark.parametrize(
    ("keys", "pictures"),
    [
        ((ALPHA,), set()),
        ((ALPHA, K), {"heat_map-algorithm_weight_alpha-algorithm_context_length.png"}),
        (("a.x", "b.x", "b.y"), {f"heat_map-{p}.png" for p in ("a_x-b_x", "a_x-b_y", "b_x-b_y")}),
    ],
)
def test_files(tmp_path: Path, keys: tuple[str, ...], pictures: set[str]) -> None:
    sweep = make_sweep(
        tmp_path / "sweep",
        keys,
        [
            (dict.fromkeys(keys, value), 7, str(value), 0.2, 0.5, 10)
            for value in ("x", None, [1.0], 1)
        ],
    )
    (tmp_path / "out").mkdir()
    files = write_results(tmp_path / "out", sweep)
    assert sorted(files) == sorted((tmp_path / "out").iterdir()), "no partial file is left"
    assert {file.name for file in files} == pictures | {"results.csv", "points.csv"}
    for picture in pictures:
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").open()))
    assert [row[keys[0]] for row in rows] == ["x", "null", "[1.0]", "1"]
    assert {(row["seed"], row["before"], row["after"]) for row in rows} == {("7", "0.2", "0.5")}
    points = list(csv.DictReader((tmp_path / "out" / "points.csv").open()))
    assert [point[keys[0]] for point in points] == ["x", "null", "[1.0]", "1"]
    assert {(p["runs"], p["after"], p["after_error"]) for p in points} == {("1", "0.5", "")}
