"""Present the results of a sweep as a table, files and heat maps."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from env_wrappers.files import write_atomically
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.console import make_table
from hgpo_rllib.reporting.numbers import percent
from hgpo_rllib.reporting.tables import formatted_rates, mean_rates
from hgpo_rllib.results import Sweep

COLORS = "cividis"  # uniform lightness, suitable for color-blind readers
CELL = (1.5, 1.0)  # inches
MARGINS = (2.6, 1.9)  # for labels and color bar


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
    return groups.size().to_frame("runs").join([iterations, mean_rates(groups)])


def as_text(value: Any) -> str:
    """Format the value of a setting as on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def results_table(sweep: Sweep) -> Table:
    """Return a table of points: held-out success before and after, mean and error over seeds."""
    summary = summarize(sweep.trials, sweep.keys).reset_index()
    rates = formatted_rates(summary).to_dict("records")
    rows = [
        {
            **{key.replace(".", ".\n"): row[key] for key in sweep.keys},
            "seeds": row["runs"],
            _trained(sweep.keys): span(row["iterations_min"], row["iterations_max"]),
            **cells,
        }
        for row, cells in zip(summary.to_dict("records"), rates, strict=True)
    ]
    return make_table(rows, "Held-out success, mean ± standard error over seeds")


def _trained(keys: Sequence[str]) -> str:
    """Return the name of the column of trained iterations, which no swept setting has."""
    return "iteration" if "iterations" in keys else "iterations"


def write_results(folder: Path, sweep: Sweep) -> list[Path]:
    """Write results.csv (a row per run), points.csv (one per grid point), and heat maps."""
    keys = sweep.keys
    trials = sweep.trials.rename(columns={"iteration": _trained(keys)})
    columns = ["run", *keys, "seed", _trained(keys), "episodes", "before", "after"]
    texts = trials.assign(**{key: trials[key].map(as_text) for key in keys})
    contents: dict[str, str | bytes] = {
        "results.csv": texts[columns].astype({"episodes": "Int64"}).to_csv(index=False),
        "points.csv": summarize(sweep.trials, keys).to_csv(),
    }
    for axes in itertools.combinations(keys, 2):
        name = "-".join(key.replace(".", "_") for key in axes)
        with mpl.rc_context(style.STYLE):
            contents[f"heat_map-{name}.png"] = style.png(heat_map(summarize(sweep.trials, axes)))
    return [write_atomically(folder / name, content) for name, content in contents.items()]


def heat_map(summary: pd.DataFrame) -> Figure:
    """Return a heat map of success after training, in the current style.

    Args:
        summary: see `summarize`, for two keys. The second key is on the horizontal axis, with
            values in row order.
    """
    rows, columns = (summary.index.unique(level) for level in (0, 1))
    means, errors = (
        summary[name].unstack().reindex(index=rows, columns=columns)
        for name in ("after", "after_error")
    )
    size = [c * n + m for c, n, m in zip(CELL, means.shape[::-1], MARGINS, strict=True)]
    figure = Figure(figsize=(max(size[0], 6.0), size[1]))
    axes = figure.subplots()
    image = axes.imshow(means, cmap=COLORS, aspect="auto")
    middle = (means.min(axis=None) + means.max(axis=None)) / 2
    for y in range(len(rows)):
        for x in range(len(columns)):
            mean = means.iat[y, x]
            text = percent(mean, errors.iat[y, x]).replace(" ±", "\n±")
            color = "white" if mean <= middle else "black"
            axes.text(x, y, text, ha="center", va="center", color=color)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=columns.name, ylabel=rows.name)
    axes.grid(visible=False)
    runs, low, high = (summary[name] for name in ("runs", "iterations_min", "iterations_max"))
    error = "mean ± standard error, " if runs.max() > 1 else ""
    axes.set_title(
        f"Held-out success after training, iterations: {span(low.min(), high.max())}\n"
        f"{error}runs per cell: {span(runs.min(), runs.max())}"
    )
    figure.colorbar(image, format=PercentFormatter(xmax=1))
    return figure


def span(low: int, high: int) -> str:
    """Format a range as ``2`` or ``1 to 3``."""
    return str(low) if low == high else f"{low} to {high}"
