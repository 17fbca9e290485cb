"""The plots of a report: success, how training changed the policy, and the groups of steps."""

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
    Panel,
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

METRIC_FIGURES = ("training", "policy", "environments", "critic", "mismatch", "speed")
"""Figures of `hgpo_rllib.metrics` with their own plot; `training` has the paper's six panels."""
ORACLE = "whole history (Oracle)"
UTILISATION, SIZE = "level_fraction_k", "level_group_size_k"


def pictures(experiments: Experiments) -> dict[str, bytes]:
    """Return the plots of a report as PNGs, by file name."""
    with mpl.rc_context(style.STYLE):
        return {name: style.png(figure) for name, figure in figures(experiments).items()}


def figures(experiments: Experiments) -> dict[str, Figure]:
    """Return the non-empty plots by file name, in the current style."""
    drawn = {
        "learning_curve.png": _learning_curve(experiments),
        "hierarchy.png": _hierarchy(experiments),
        "group_sizes.png": _histograms(experiments),
    }
    for name in METRIC_FIGURES:
        panels = [metric_panel(panel, experiments) for panel in PANELS if panel.figure == name]
        drawn[f"{name}.png"] = draw_panels(panels, experiments, height=2.4)
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


# --- the groups in which steps are compared, by depth k of shared history -------------------------


def _hierarchy(experiments: Experiments) -> Figure | None:
    """Plot step utilisation and group sizes, by iteration or, for several experiments, by depth."""
    alone = len(experiments) == 1
    panels = _of_one(*experiments.values()) if alone else _of_several(experiments)
    return draw_panels(panels, experiments, height=3.6)


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


def _learning_share(runs: Runs) -> pd.DataFrame:
    """Return the share of steps with a non-zero advantage, as a band."""
    zero = band(runs, "zero_advantage_fraction")
    return zero.assign(mean=1 - zero["mean"])


def _of_one(runs: Runs) -> list[Panel]:
    """Return panels with one line per depth; darker lines have a longer history."""
    learning = Line(_learning_share(runs), "advantage not 0", VERMILION, "--")
    shares = [*_depth_lines(runs, UTILISATION, "oracle_fraction"), learning]
    sizes = _depth_lines(runs, SIZE, "oracle_group_size")
    return [
        Panel("Step utilisation", lines=shares, rate=True, legend_below=True),
        Panel("Mean size of those groups", lines=sizes, amount=True, legend_below=True),
        *(
            metric_panel(panel, {"": runs})
            for panel in PANELS
            if panel.figure == "groups" and not any("{k}" in m.name for m in panel.metrics)
        ),
    ]


def _of_several(experiments: Experiments) -> list[Panel]:
    learning, shares, sizes = (
        [
            Line(values(runs), "", style.colour_of(index), style.dash_of(index))
            for index, runs in enumerate(experiments.values())
        ]
        for values in (
            _learning_share,
            lambda runs: _by_depth(runs, UTILISATION),
            lambda runs: _by_depth(runs, SIZE),
        )
    )
    depth = "shared history, k"
    return [
        Panel("Steps with an advantage not 0", lines=learning, rate=True),
        Panel("Step utilisation by depth", lines=shares, rate=True, x_label=depth),
        Panel("Mean size of those groups", lines=sizes, amount=True, x_label=depth),
    ]


def _depth_lines(runs: Runs, prefix: str, oracle: str) -> list[Line]:
    depths = _depths(runs, prefix)
    shades = mpl.colormaps["viridis"].reversed()
    lines = [
        Line(
            band(runs, f"{prefix}{depth}"),
            f"k = {depth}",
            shades(0.2 + 0.8 * index / max(len(depths) - 1, 1)),
        )
        for index, depth in enumerate(depths)
    ]
    # The oracle is not a depth, so its line must look different.
    return [*lines, Line(band(runs, oracle), ORACLE, BLACK, ":")]


def _by_depth(runs: Runs, prefix: str) -> pd.DataFrame:
    """Return the mean over all iterations, indexed by depth."""
    depths = _depths(runs, prefix)
    means = [band(runs, f"{prefix}{depth}")["mean"].mean() for depth in depths]
    return pd.DataFrame({"mean": means, "error": 0.0}, index=depths).dropna()


def _depths(runs: Runs, prefix: str) -> list[int]:
    found = runs.metrics.columns.str.extract(rf"^{prefix}(\d+)$", expand=False).dropna()
    return sorted(found.astype(int))
