"""Panels of lines with bands, side by side in one figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hgpo_rllib import metrics
from hgpo_rllib.reporting import style
from hgpo_rllib.results import Runs

Experiments = Mapping[str, Runs]
"""Runs by experiment name; each experiment has a color."""


@dataclass(frozen=True)
class Line:
    """One line; a non-empty label appears in the panel's legend."""

    values: pd.DataFrame
    """Columns `mean` and `error` (standard error over runs, or 0), indexed by x."""
    label: str = ""
    color: Any = style.BLUE
    dash: str = "-"
    width: float = 1.7


@dataclass(frozen=True)
class Panel:
    """Lines plotted against the iteration, or against `x_label`."""

    title: str
    lines: Sequence[Line]
    full_range: bool = False
    """The axis ranges from 0 to 100 %."""
    from_zero: bool = False
    """The axis starts at 0."""
    log: bool = False
    """The axis is logarithmic, without bands; values that are not positive become gaps."""
    x_label: str = "iteration"


def metric_panel(panel: metrics.Panel, experiments: Experiments) -> Panel:
    """Return a panel with one line per metric and experiment.

    Colors distinguish metrics or, if there are several, experiments; dashes then distinguish
    metrics.
    """
    lines = []
    shown = [named for metric in panel.metrics for named in _recorded(metric, experiments)]
    for place, metric in enumerate(shown):
        for index, runs in enumerate(experiments.values()):
            values = band(runs, metric.name)
            if len(experiments) == 1:
                lines.append(Line(values, metric.label, style.color_of(place)))
                continue
            dash = style.dash_of(index)
            if len(shown) > 1:
                dash = style.DASHES[place % len(style.DASHES)]
            label = metric.label if index == 0 else ""
            lines.append(Line(values, label, style.color_of(index), dash))
    return Panel(panel.heading, lines, panel.full_range, panel.from_zero, panel.log)


def _recorded(metric: metrics.Metric, experiments: Experiments) -> list[metrics.Metric]:
    """Return a metric for each recorded depth or environment, if its name has a placeholder.

    Depths are left out if there are several experiments: they would be too many lines.
    """
    stem, mark, placeholder = metric.name.partition("{")
    if not mark:
        return [metric]
    per_depth = placeholder == "k}"
    if per_depth and len(experiments) > 1:
        return []
    columns = {column for runs in experiments.values() for column in runs.metrics.columns}
    names = [column.removeprefix(stem) for column in columns if column.startswith(stem)]
    return [
        replace(metric, name=stem + name, label=f"k = {name}" if per_depth else name)
        for name in sorted(names, key=lambda name: name.zfill(3))
    ]


def band(runs: Runs, key: str, rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return `mean` and standard `error` of a column over the runs, by iteration.

    Args:
        runs: the runs of one experiment.
        key: the column; the band is empty if no run has recorded it.
        rows: replaces `runs.metrics` if given.

    Returns:
        Only iterations in which every run has a value; the error of a single run is 0.
    """
    rows = runs.metrics if rows is None else rows
    if key not in rows:
        return pd.DataFrame({"mean": [], "error": []}, dtype=float)
    values = rows.groupby("iteration")[key].agg(["mean", "sem", "count"])
    shared = values[values["count"] == len(runs.members)]
    return pd.DataFrame({"mean": shared["mean"], "error": shared["sem"].fillna(0.0)})


def draw_panels(panels: Sequence[Panel], names: Sequence[str], height: float) -> Figure | None:
    """Draw the panels that have lines, each `height` inches high; return None if there are none.

    `names` are those of the curves' colors, for a legend above the panels; empty: no such legend.
    """
    drawn = [
        replace(panel, lines=[line for line in panel.lines if line.values["mean"].notna().any()])
        for panel in panels
    ]
    known = [panel for panel in drawn if panel.lines]
    if not known:
        return None
    figure, axes = style.grid(len(known), height)
    for panel, place in zip(known, axes, strict=True):
        _draw(place, panel, neutral_legend=bool(names))
    if names:
        style.legend_above(figure, names)
    return figure


def _draw(axes: Axes, panel: Panel, neutral_legend: bool) -> None:
    """Draw one panel; a neutral legend shows dashes without colors."""
    if panel.log:
        axes.set_yscale("log", nonpositive="mask")
    for line in panel.lines:
        x, mean, error = line.values.index, line.values["mean"], line.values["error"]
        axes.plot(
            x,
            mean,
            color=line.color,
            linestyle=line.dash,
            linewidth=line.width,
            # A line through one or two points is invisible without markers.
            marker="o" if len(x) <= style.MARKED else None,
            label=line.label or None,
        )
        if error.any() and not panel.log:
            low, high = mean - error, mean + error
            axes.fill_between(x, low, high, color=line.color, alpha=0.18, linewidth=0)
    axes.set_title(panel.title)
    if panel.full_range:
        style.rate_axis(axes)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(panel.x_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    shown = style.legend_below(axes)
    for handle in shown.get_lines() if shown and neutral_legend else []:
        handle.set(color=style.GREY, marker="")
