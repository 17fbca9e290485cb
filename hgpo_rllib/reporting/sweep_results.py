"""The results of a sweep: read from its run directories, as a table, as files, as heat maps."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hgpo_rllib.reporting.heat_map import HeatMap, draw, span
from hgpo_rllib.reporting.run_data import ALL, Row, read_jsonl
from hgpo_rllib.reporting.stats import (
    Estimate,
    number,
    over_seeds,
    percent,
    points,
    success,
)

Point = dict[str, Any]
"""Value of every swept key."""


@dataclass(frozen=True)
class Outcome:
    """Held-out success of one finished run, all splits together, with binomial errors."""

    run: str
    """Name of the run directory."""
    before: Estimate
    after: Estimate
    iterations: int
    """Until `after`: fewer than asked for where a scheduler stopped the run."""
    episodes: int
    """Of each of the two evaluations."""


@dataclass(frozen=True)
class Summary:
    """The runs of one point; errors are over them and need at least two."""

    point: Point
    runs: int
    before: Estimate
    after: Estimate
    gain: Estimate
    """Of the differences run by run: both evaluations of a run begin with the same policy."""
    iterations: tuple[int, ...]
    """Those of the runs, each number once, in ascending order."""


Trials = Sequence[tuple[Point, int, Outcome]]
"""Point, seed and outcome of the runs that have finished."""


def is_finished(run: Path) -> bool:
    """Whether the run has come to its end: its summary is what it writes last."""
    return (run / "summary.json").is_file()


def held_out_rows(run: Path) -> list[Row]:
    """The run's evaluations so far, all splits together."""
    return [row for row in read_jsonl(run / "evaluation.jsonl") if row["split"] == ALL]


def read_outcome(run: Path) -> Outcome:
    """First and last evaluation of a finished run."""
    rows = held_out_rows(run)
    first, last = rows[0], rows[-1]
    return Outcome(
        run.name,
        success(first),
        success(last),
        int(last["iteration"]),
        int(number(last, "episodes") or 0),
    )


def summarize(trials: Trials) -> list[Summary]:
    """Mean and standard error over the runs of every point, in the order of the trials."""
    return [_summarize(point, outcomes) for point, outcomes in _by_point(trials, _keys(trials))]


def results_table(trials: Trials) -> Table:
    """The points with held-out success before and after, mean and standard error over seeds."""
    table = Table(title="Held-out success, mean ± standard error over seeds", title_justify="left")
    for key in _keys(trials):
        table.add_column(key.replace(".", ".\n"), overflow="fold")
    for heading in ("seeds", "iterations", "before", "after", "difference (points)"):
        table.add_column(heading, justify="right")
    for summary in summarize(trials):
        table.add_row(
            *map(_text, summary.point.values()),
            str(summary.runs),
            span(summary.iterations),
            percent(summary.before),
            percent(summary.after),
            points(summary.gain),
        )
    return table


def write_results(folder: Path, trials: Trials) -> list[Path]:
    """Write results.csv (one line a run), results.json (points as well), and the heat maps."""
    contents = {
        "results.csv": _csv(trials).encode(),
        "results.json": (json.dumps(_json(trials), indent=2) + "\n").encode(),
    }
    keys = _keys(trials)
    axes = itertools.combinations(keys, min(2, len(keys)))
    for pair in axes:
        name = "-".join(key.replace(".", "_") for key in pair)
        contents[f"heat_map-{name}.png"] = draw(heat_map(trials, pair))
    for name, content in contents.items():
        partial = folder / f".{name}.partial"
        partial.write_bytes(content)
        partial.replace(folder / name)
    return [folder / name for name in contents]


def heat_map(trials: Trials, axes: Sequence[str]) -> HeatMap:
    """Success after training by one or two keys; a cell holds all runs with its values.

    With more swept keys a cell is the mean over the values of the others, too.
    """
    groups = {
        tuple(map(_text, point.values())): _summarize(point, outcomes)
        for point, outcomes in _by_point(trials, axes)
    }
    columns = list(dict.fromkeys(cell[-1] for cell in groups))
    rows = list(dict.fromkeys(cell[0] for cell in groups)) if len(axes) == 2 else [""]
    empty = Estimate(None)

    def cell(row: str, column: str) -> Estimate:
        summary = groups.get((row, column) if len(axes) == 2 else (column,))
        return summary.after if summary else empty

    return HeatMap(
        x_key=axes[-1],
        y_key=axes[0] if len(axes) == 2 else "",
        columns=columns,
        rows=rows,
        cells=[[cell(row, column) for column in columns] for row in rows],
        runs=sorted({summary.runs for summary in groups.values()}),
        iterations=sorted({n for summary in groups.values() for n in summary.iterations}),
    )


def _keys(trials: Trials) -> list[str]:
    return list(trials[0][0])


def _by_point(trials: Trials, keys: Sequence[str]) -> list[tuple[Point, list[Outcome]]]:
    found: dict[str, tuple[Point, list[Outcome]]] = {}
    for point, _, outcome in trials:
        part = {key: point[key] for key in keys}
        found.setdefault(json.dumps(part), (part, []))[1].append(outcome)
    return list(found.values())


def _summarize(point: Point, outcomes: Sequence[Outcome]) -> Summary:
    return Summary(
        point,
        len(outcomes),
        over_seeds([outcome.before.value for outcome in outcomes]),
        over_seeds([outcome.after.value for outcome in outcomes]),
        over_seeds([(outcome.after - outcome.before).value for outcome in outcomes]),
        tuple(sorted({outcome.iterations for outcome in outcomes})),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _csv(trials: Trials) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *_keys(trials), "seed", "iterations", "episodes", "before", "after"])
    for point, seed, outcome in trials:
        writer.writerow(
            [
                outcome.run,
                *map(_text, point.values()),
                seed,
                outcome.iterations,
                outcome.episodes,
                outcome.before.value,
                outcome.after.value,
            ]
        )
    return text.getvalue()


def _json(trials: Trials) -> dict[str, Any]:
    def estimate(value: Estimate) -> dict[str, float | None]:
        return {"mean": value.value, "standard_error": value.error}

    return {
        "keys": _keys(trials),
        "points": [
            {
                "point": summary.point,
                "runs": summary.runs,
                "before": estimate(summary.before),
                "after": estimate(summary.after),
                "gain": estimate(summary.gain),
            }
            for summary in summarize(trials)
        ],
        "trials": [
            {
                "run": outcome.run,
                "point": point,
                "seed": seed,
                "iterations": outcome.iterations,
                "episodes": outcome.episodes,
                "before": outcome.before.value,
                "after": outcome.after.value,
            }
            for point, seed, outcome in trials
        ],
    }
