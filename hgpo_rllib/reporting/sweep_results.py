"""Present the results of a sweep as a table, files and heat maps."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from env_wrappers.files import write_atomically
from hgpo_rllib.reporting import heat_map
from hgpo_rllib.reporting.numbers import percent, points
from hgpo_rllib.results import Sweep

RATES = ["before", "after", "gain"]


def summarize(trials: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return means over the finished trials of each grid point, in the order of the trials.

    Args:
        trials: see `Sweep.trials`.
        keys: swept settings; a point is all trials with equal values of these.

    Returns:
        A frame indexed by the values as text, with columns `runs`, `iterations_min`,
        `iterations_max`; `before`, `after` and `gain` with their standard errors over the runs, NaN
        for a single run (`before_error`, …). Gains are computed per run, as both evaluations of a
        run start from the same policy.
    """
    groups = trials.groupby([trials[key].map(as_text) for key in keys], sort=False)
    iterations = groups["iteration"].agg(["min", "max"]).add_prefix("iterations_")
    errors = groups[RATES].sem().add_suffix("_error")
    parts = [groups.size().rename("runs"), iterations, groups[RATES].mean(), errors]
    return pd.concat(parts, axis="columns")


def as_text(value: Any) -> str:
    """Format the value of a setting as on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def results_table(sweep: Sweep) -> Table:
    """Return a table of points: held-out success before and after, mean and error over seeds."""
    table = Table(title="Held-out success, mean ± standard error over seeds", title_justify="left")
    for key in sweep.keys:
        table.add_column(key.replace(".", ".\n"), overflow="fold")
    for heading in ("seeds", "iterations", "before", "after", "difference (points)"):
        table.add_column(heading, justify="right")
    for row in summarize(sweep.trials, sweep.keys).reset_index().to_dict("records"):
        table.add_row(
            *(row[key] for key in sweep.keys),
            str(row["runs"]),
            heat_map.span(row["iterations_min"], row["iterations_max"]),
            percent(row["before"], row["before_error"]),
            percent(row["after"], row["after_error"]),
            points(row["gain"], row["gain_error"]),
        )
    return table


def write_results(folder: Path, sweep: Sweep) -> list[Path]:
    """Write results.csv (one row per run), results.json (also by point), and the heat maps."""
    keys, trials = sweep.keys, sweep.trials.rename(columns={"iteration": "iterations"})
    columns = ["run", *keys, "seed", "iterations", "episodes", "before", "after"]
    trials = trials[columns].astype({"episodes": "Int64"})
    texts = trials.assign(**{key: trials[key].map(as_text) for key in keys})
    contents: dict[str, str | bytes] = {
        "results.csv": texts.to_csv(index=False),
        "results.json": json.dumps(_json(sweep, trials), indent=2) + "\n",
    }
    for axes in itertools.combinations(keys, min(2, len(keys))):
        name = "-".join(key.replace(".", "_") for key in axes)
        contents[f"heat_map-{name}.png"] = heat_map.draw(summarize(sweep.trials, axes))
    return [write_atomically(folder / name, content) for name, content in contents.items()]


def _json(sweep: Sweep, trials: pd.DataFrame) -> dict[str, Any]:
    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {key: None if _is_missing(value) else value for key, value in row.items()}

    def estimate(row: dict[str, Any], name: str) -> dict[str, Any]:
        return plain({"mean": row[name], "standard_error": row[f"{name}_error"]})

    values = trials[sweep.keys].to_dict("records")
    by_text = {tuple(map(as_text, point.values())): point for point in values}
    summary = summarize(sweep.trials, sweep.keys).reset_index().to_dict("records")
    return {
        "keys": sweep.keys,
        "points": [
            {
                "point": by_text[tuple(row[key] for key in sweep.keys)],
                "runs": row["runs"],
                **{name: estimate(row, name) for name in RATES},
            }
            for row in summary
        ],
        "trials": [
            {"run": row["run"], "point": point} | plain(row)
            for row, point in zip(
                trials.drop(columns=sweep.keys).to_dict("records"), values, strict=True
            )
        ],
    }


def _is_missing(value: Any) -> bool:
    return value is pd.NA or (isinstance(value, float) and math.isnan(value))
