"""The plots of a report: success, the metrics of `hgpo_rllib.metrics`, and sizes of groups."""

import itertools
from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.metrics import PANELS
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.panels import Experiments, Line, Panel, band, draw_panels, metric_panel
from hgpo_rllib.reporting.style import BLACK, COLORS, GREEN, ORANGE, PINK, SKY, VERMILION
from hgpo_rllib.results import ALL, Runs

SPLIT_COLORS = (VERMILION, GREEN, PINK, ORANGE)
RUNNING_MEAN = 10
SEEDS_SHOWN = 6
"""With more seeds, an experiment is drawn without individual lines."""

METRIC_FIGURES = ("training", "policy", "groups", "environments", "critic", "mismatch", "speed")
"""Figures of `hgpo_rllib.metrics` with their own plot; `training` has the paper's six panels."""


def pictures(experiments: Experiments) -> dict[str, bytes]:
    """Return the plots of a report as PNGs, by file name."""
    with mpl.rc_context(style.STYLE):
        return {name: style.png(figure) for name, figure in figures(experiments).items()}


def figures(experiments: Experiments) -> dict[str, Figure]:
    """Return the non-empty plots by file name, in the current style."""
    names = list(experiments) if len(experiments) > 1 else []
    success = [_training_games(experiments), _held_out_games(experiments)]
    drawn = {
        "learning_curve.png": draw_panels(success, names, 4.0),
        "group_sizes.png": _histograms(experiments, names),
    }
    for kind in METRIC_FIGURES:
        panels = [metric_panel(panel, experiments) for panel in PANELS if panel.figure == kind]
        height = 3.6 if kind == "groups" else 2.4  # room for the legends below the panels
        drawn[f"{kind}.png"] = draw_panels(panels, names, height)
    return {file: figure for file, figure in drawn.items() if figure is not None}


def _training_games(experiments: Experiments) -> Panel:
    bands = [band(runs, "success_rate") for runs in experiments.values()]
    lines, label = [], ""
    if len(bands) == 1:
        lines = [Line(bands[0].assign(error=0.0), "each iteration", SKY, width=0.9)]
        label = f"mean of the last {RUNNING_MEAN}"
    for index, values in enumerate(bands):
        smooth = values.rolling(RUNNING_MEAN, min_periods=1).mean()
        lines.append(Line(smooth, label, style.color_of(index), style.dash_of(index)))
    return Panel("Success on training games", lines, full_range=True)


def _held_out_games(experiments: Experiments) -> Panel:
    """Show the splits of a single run; otherwise the means of all splits, with a few seeds."""
    (first, *others) = experiments.values()
    if not others and len(first.members) == 1:
        return Panel("Success on held-out games", _splits(first), full_range=True)
    lines = []
    if not others and len(first.members) <= SEEDS_SHOWN:
        rows = first.evaluations.query("split == @ALL").groupby("run", sort=False)
        for index, (_, values) in enumerate(rows):
            label = f"seed {values['seed'].iloc[0]}"
            lines.append(
                Line(_rates(values).assign(error=0.0), label, COLORS[index + 1], width=0.9)
            )
    for index, runs in enumerate(experiments.values()):
        values = band(runs, "success_rate", runs.evaluations.query("split == @ALL"))
        label = "" if others else f"mean of {len(first.members)} seeds"
        lines.append(Line(values, label, style.color_of(index), style.dash_of(index), 2.2))
    return Panel("Success on held-out games, all splits", lines, full_range=True)


def _splits(run: Runs) -> list[Line]:
    """Return a line per split of a single run, with the standard errors of its evaluations."""
    rows = run.evaluations.dropna(subset="success_rate")
    splits = [split for split in rows["split"].unique() if split != ALL]
    lines = [
        Line(_rates(rows[rows["split"] == split]), split, color, width=1.2)
        for split, color in zip(splits, itertools.cycle(SPLIT_COLORS), strict=False)
    ]
    if len(splits) != 1:  # with a single split, the pooled curve would be identical
        pooled = _rates(rows[rows["split"] == ALL])
        lines.append(Line(pooled, "all held-out", BLACK, width=2.2))
    return lines


def _rates(evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return the success rates of evaluations and their errors, for a line."""
    found = evaluations.set_index("iteration")
    return pd.DataFrame({"mean": found["success_rate"], "error": found["standard_error"].fillna(0)})


def _histograms(experiments: Experiments, names: Sequence[str]) -> Figure | None:
    """Plot the share of steps by group size, averaged over iterations, one panel per depth."""
    shares = pd.DataFrame(
        {
            name: runs.group_sizes.groupby(["depth", "size"])["share"].mean()
            for name, runs in experiments.items()
        }
    ).fillna(0.0)
    if shares.empty:
        return None
    depths = shares.index.unique("depth")
    figure, axes = style.grid(len(depths), 2.6)
    colors = [style.color_of(index) for index in range(len(experiments))]
    for depth, place in zip(depths, axes, strict=True):
        heights = shares.loc[depth].reindex(list(SIZE_LABELS))
        heights.plot.bar(ax=place, width=0.86, color=colors, legend=False, rot=0, fontsize=8)
        style.rate_axis(place)
        place.set_ylim(0, min(1.0, 1.15 * shares.to_numpy().max()) or 1.0)
        place.grid(visible=False, axis="x")
        place.set(xlabel="size of the group", ylabel="steps", title=f"k = {depth}")
    if names:
        style.legend_above(figure, names)
    return figure
