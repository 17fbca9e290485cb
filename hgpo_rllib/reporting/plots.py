"""The plots of a report: success, the metrics of `hgpo_rllib.metrics`, and sizes of groups."""

from collections.abc import Sequence

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.metrics import PANELS
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.panels import (
    Experiments,
    Line,
    band,
    draw_line,
    draw_panels,
    metric_panel,
    name_experiments,
)
from hgpo_rllib.reporting.style import BLACK, GREEN, ORANGE, PINK, SKY, VERMILION
from hgpo_rllib.results import ALL, Runs

SPLIT_COLOURS = (VERMILION, GREEN, PINK, ORANGE)
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
    drawn = {
        "learning_curve.png": _learning_curve(experiments),
        "group_sizes.png": _histograms(experiments),
    }
    for name in METRIC_FIGURES:
        panels = [metric_panel(panel, experiments) for panel in PANELS if panel.figure == name]
        height = 3.6 if name == "groups" else 2.4  # room for the legends below the panels
        drawn[f"{name}.png"] = draw_panels(panels, experiments, height)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _learning_curve(experiments: Experiments) -> Figure | None:
    """Plot success on training games (left) and held-out games (right), if recorded."""
    training = [band(runs, "success_rate") for runs in experiments.values()]
    held_out = [
        band(runs, "success_rate", runs.evaluations.query("split == @ALL"))
        for runs in experiments.values()
    ]
    recorded = [any(map(len, bands)) for bands in (training, held_out)]
    if not any(recorded):
        return None
    figure, panels = style.grid(sum(recorded), 4.0, columns=2)
    if recorded[0]:
        _training_games(panels[0], training)
    if recorded[1]:
        members = [run for runs in experiments.values() for run in runs.members]
        if len(members) == 1:
            (runs,) = experiments.values()
            _splits(panels[-1], runs)
        else:
            _held_out(panels[-1], experiments, held_out)
    for axes in panels:
        style.rate_axis(axes, "success rate")
        style.whole_numbers(axes)
        style.legend(axes)
    name_experiments(figure, experiments)
    return figure


def _training_games(axes: Axes, bands: Sequence[pd.DataFrame]) -> None:
    label = ""
    if len(bands) == 1:
        draw_line(axes, Line(bands[0].assign(error=0.0), "each iteration", SKY, width=0.9))
        label = f"mean of the last {RUNNING_MEAN}"
    for index, values in enumerate(bands):
        smooth = values.rolling(RUNNING_MEAN, min_periods=1).mean()
        draw_line(axes, Line(smooth, label, style.colour_of(index), style.dash_of(index)))
    axes.set_title("Training games")


def _splits(axes: Axes, run: Runs) -> None:
    """Plot the held-out splits of a single run, with their evaluation errors."""
    rows = run.evaluations.dropna(subset="success_rate")
    splits = [split for split in rows["split"].unique() if split != ALL]
    # With a single split, the pooled curve would be identical.
    for index, split in enumerate(splits if len(splits) == 1 else [*splits, ALL]):
        pooled = split == ALL
        values = rows[rows["split"] == split]
        axes.errorbar(
            values["iteration"],
            values["success_rate"],
            yerr=values["standard_error"].fillna(0.0),
            color=BLACK if pooled else SPLIT_COLOURS[index % len(SPLIT_COLOURS)],
            linewidth=2.2 if pooled else 1.2,
            marker="o",
            markersize=4,
            label="all held-out" if pooled else split,
        )
    axes.set_title("Held-out games")


def _held_out(axes: Axes, experiments: Experiments, bands: Sequence[pd.DataFrame]) -> None:
    (first, *others) = experiments.values()
    if not others and len(first.members) <= SEEDS_SHOWN:
        rows = first.evaluations.query("split == @ALL").groupby("run", sort=False)
        for index, (_, values) in enumerate(rows):
            seed = values.assign(mean=values["success_rate"], error=0.0).set_index("iteration")
            label = f"seed {values['seed'].iloc[0]}"
            draw_line(axes, Line(seed, label, style.COLOURS[index + 1], width=0.9))
    for index, values in enumerate(bands):
        label = "" if others else f"mean of {len(first.members)} seeds"
        draw_line(axes, Line(values, label, style.colour_of(index), style.dash_of(index), 2.2))
    axes.set_title("Held-out games, all splits")


def _histograms(experiments: Experiments) -> Figure | None:
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
    colours = [style.colour_of(index) for index in range(len(experiments))]
    for depth, place in zip(depths, axes, strict=True):
        heights = shares.loc[depth].reindex(list(SIZE_LABELS))
        heights.plot.bar(ax=place, width=0.86, color=colours, legend=False, rot=0, fontsize=8)
        style.rate_axis(place, "steps")
        place.set_ylim(0, min(1.0, 1.15 * shares.to_numpy().max()) or 1.0)
        place.grid(visible=False, axis="x")
        place.set(xlabel="size of the group", title=f"k = {depth}")
    name_experiments(figure, experiments)
    return figure
