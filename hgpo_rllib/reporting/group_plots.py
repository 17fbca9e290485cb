"""Pictures of the groups that steps are compared in, by depth k of shared history."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from statistics import fmean

import matplotlib as mpl
from matplotlib.figure import Figure

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.curves import Band, Curve, band
from hgpo_rllib.reporting.panels import Line, Metric, Panel, draw_panels, name_curves
from hgpo_rllib.reporting.run_data import Row
from hgpo_rllib.reporting.style import BLACK, BLUE, ORANGE, VERMILION

ORACLE = "whole history (Oracle)"
GAPS = Metric(
    "Distance from the Oracle",
    {
        "oracle_gap_trajectory": ("trajectory-level", VERMILION),
        "oracle_gap_step": ("step-level", ORANGE),
        "oracle_gap_hgpo": ("HGPO", BLUE),
    },
    amount=True,
    legend_below=True,
)
UTILISATION, SIZE = "level_fraction_k", "level_group_size_k"


def hierarchy(curves: Sequence[Curve]) -> Figure | None:
    """Step utilisation and group sizes: of one curve over the iterations, of several by depth."""
    panels = _of_one(curves[0]) if len(curves) == 1 else _of_several(curves)
    return draw_panels(panels, curves, height=3.6)


def histograms(curves: Sequence[Curve]) -> Figure | None:
    """One panel a depth, on one scale: steps by the size of their group, mean of iterations."""
    shares = [size_shares(row for run in curve.runs for row in run.metrics) for curve in curves]
    depths = sorted({depth for share in shares for depth in share})
    if not depths:
        return None
    figure, axes = style.grid(len(depths), 2.6)
    thick = 0.86 / len(curves)
    highest = max(value for share in shares for heights in share.values() for value in heights)
    for depth, place in zip(depths, axes, strict=True):
        for index, share in enumerate(shares):
            left = [i - 0.43 + (index + 0.5) * thick for i in range(len(SIZE_LABELS))]
            heights = share.get(depth, [0.0] * len(SIZE_LABELS))
            place.bar(left, heights, thick, color=style.colour_of(index))
        style.rate_axis(place, "steps")
        place.set_ylim(0, min(1.0, 1.15 * highest) or 1.0)
        place.set_xticks(range(len(SIZE_LABELS)), SIZE_LABELS, fontsize=8)
        place.grid(visible=False, axis="x")
        place.set_xlabel("size of the group")
        place.set_title(f"k = {depth}")
    name_curves(figure, curves)
    return figure


def size_shares(rows: Iterable[Row]) -> dict[int, list[float]]:
    """By depth, the mean over the rows of the share of steps in each bin of `SIZE_LABELS`.

    A row without (whole, finite) shares of a depth has no part in that depth's mean; a depth
    that no row knows is left out.
    """
    tables = [row.get("level_size_shares") for row in rows]
    by_depth = zip_longest(*(table for table in tables if isinstance(table, list)))
    known = {k: [s for s in depth if _is_shares(s)] for k, depth in enumerate(by_depth)}
    return {k: [fmean(share) for share in zip(*s, strict=True)] for k, s in known.items() if s}


def _is_shares(shares: object) -> bool:
    return (
        isinstance(shares, list)
        and len(shares) == len(SIZE_LABELS)
        and all(isinstance(share, int | float) and math.isfinite(share) for share in shares)
    )


def learning_share(curve: Curve) -> Band:
    """Share of steps whose advantage is not 0."""
    zero = band(curve, "zero_advantage_fraction")
    return Band(zero.x, [1 - value for value in zero.mean], zero.error)


def _of_one(curve: Curve) -> list[Panel]:
    """A line a depth: darker, the longer the shared history."""
    learning = Line(learning_share(curve), "advantage not 0", VERMILION, "--")
    shares = [*_depth_lines(curve, UTILISATION, "oracle_fraction"), learning]
    sizes = _depth_lines(curve, SIZE, "oracle_group_size")
    return [
        Panel("Step utilisation", shares, rate=True, legend_below=True),
        Panel("Mean size of those groups", sizes, amount=True, legend_below=True),
        GAPS.panel([curve]),
    ]


def _of_several(curves: Sequence[Curve]) -> list[Panel]:
    learning, shares, sizes = (
        [
            Line(values(curve), "", style.colour_of(index), style.dash_of(index))
            for index, curve in enumerate(curves)
        ]
        for values in (
            learning_share,
            lambda curve: _by_depth(curve, UTILISATION),
            lambda curve: _by_depth(curve, SIZE),
        )
    )
    depth = "shared history, k"
    return [
        Panel("Steps with an advantage not 0", learning, rate=True),
        Panel("Step utilisation by depth", shares, rate=True, x_label=depth),
        Panel("Mean size of those groups", sizes, amount=True, x_label=depth),
    ]


def _depth_lines(curve: Curve, prefix: str, oracle: str) -> list[Line]:
    depths = _depths(curve, prefix)
    shades = mpl.colormaps["viridis"].reversed()
    lines = [
        Line(
            band(curve, f"{prefix}{depth}"),
            f"k = {depth}",
            shades(0.2 + 0.8 * index / max(len(depths) - 1, 1)),
        )
        for index, depth in enumerate(depths)
    ]
    # No depth, so it must not look like one more of them.
    return [*lines, Line(band(curve, oracle), ORACLE, BLACK, ":")]


def _by_depth(curve: Curve, prefix: str) -> Band:
    """Against the depth, the mean over all iterations."""
    bands = {float(depth): band(curve, f"{prefix}{depth}") for depth in _depths(curve, prefix)}
    known = {depth: fmean(values.mean) for depth, values in bands.items() if values.x}
    return Band(list(known), list(known.values()), [])


def _depths(curve: Curve, prefix: str) -> list[int]:
    keys = {key for run in curve.runs for row in run.metrics for key in row}
    found = {key for key in keys if re.fullmatch(prefix + r"\d+", key)}
    return sorted(int(key.removeprefix(prefix)) for key in found)
