"""Plot success as a heat map over the values of one or two settings."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.numbers import percent

COLOURS = "cividis"  # uniform lightness, suitable for colour-blind readers
CELL = (1.5, 1.0)  # inches
MARGINS = (2.6, 1.9)  # for labels and colour bar


def draw(points: pd.DataFrame) -> bytes:
    """Return the heat map as a PNG; see `heat_map`."""
    with mpl.rc_context(style.STYLE):
        return style.png(heat_map(points))


def heat_map(points: pd.DataFrame) -> Figure:
    """Return a heat map of success after training, in the current style.

    Args:
        points: see `sweep_results.summarize`, for one or two keys. The last key is on the
            horizontal axis, with values in row order.
    """
    keys = list(points.index.names)
    if len(keys) == 1:
        points = pd.concat({"": points}, names=[""])
    rows, columns = (points.index.unique(level) for level in (0, 1))
    means, errors = (
        points[name].unstack().reindex(index=rows, columns=columns)
        for name in ("after", "after_error")
    )
    size = [c * n + m for c, n, m in zip(CELL, means.shape[::-1], MARGINS, strict=True)]
    figure = style.blank((max(size[0], 6.0), size[1]))
    axes = figure.subplots()
    image = axes.imshow(means, cmap=COLOURS, aspect="auto")
    middle = (means.min(axis=None) + means.max(axis=None)) / 2
    for y in range(len(rows)):
        for x in range(len(columns)):
            mean = means.iat[y, x]
            text = percent(mean, errors.iat[y, x]).replace(" ±", "\n±")
            colour = "white" if mean <= middle else "black"
            axes.text(x, y, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)) if len(keys) == 2 else [], rows if len(keys) == 2 else [])
    axes.set(xlabel=keys[-1], ylabel=keys[0] if len(keys) == 2 else "")
    axes.grid(visible=False)
    axes.set_title(_title(points))
    figure.colorbar(image, format=PercentFormatter(xmax=1))
    return figure


def span(low: int, high: int) -> str:
    """Format a range as ``2`` or ``1 to 3``."""
    return str(low) if low == high else f"{low} to {high}"


def _title(points: pd.DataFrame) -> str:
    runs = points["runs"]
    error = "mean ± standard error, " if runs.max() > 1 else ""
    return (
        "Held-out success after training, iterations: "
        f"{span(points['iterations_min'].min(), points['iterations_max'].max())}\n"
        f"{error}runs per cell: {span(runs.min(), runs.max())}"
    )
