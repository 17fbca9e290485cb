"""Plots of the groups in which steps are compared, by depth k of shared history."""

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.metrics import PANELS
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.panels import (
    Experiments,
    Line,
    Panel,
    band,
    draw_panels,
    metric_panel,
    name_experiments,
)
from hgpo_rllib.reporting.style import BLACK, VERMILION
from hgpo_rllib.results import Runs

ORACLE = "whole history (Oracle)"
UTILISATION, SIZE = "level_fraction_k", "level_group_size_k"


def hierarchy(experiments: Experiments) -> Figure | None:
    """Plot step utilisation and group sizes, by iteration or, for several experiments, by depth."""
    alone = len(experiments) == 1
    panels = _of_one(*experiments.values()) if alone else _of_several(experiments)
    return draw_panels(panels, experiments, height=3.6)


def histograms(experiments: Experiments) -> Figure | None:
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


def learning_share(runs: Runs) -> pd.DataFrame:
    """Return the share of steps with a non-zero advantage, as a band."""
    zero = band(runs, "zero_advantage_fraction")
    return zero.assign(mean=1 - zero["mean"])


def _of_one(runs: Runs) -> list[Panel]:
    """Return panels with one line per depth; darker lines have a longer history."""
    learning = Line(learning_share(runs), "advantage not 0", VERMILION, "--")
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
            learning_share,
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
