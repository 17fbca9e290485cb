"""A picture of success over the values of one or two settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hgpo_rllib.reporting.stats import Estimate, percent
from hgpo_rllib.reporting.style import STYLE, png

COLOURS = "cividis"  # even in lightness, also for the colour-blind
CELL = (1.5, 1.0)  # inches
MARGINS = (2.6, 1.9)  # of labels and colour bar


@dataclass(frozen=True)
class HeatMap:
    """Cells `[row][column]`; a cell without runs has no value. One key: one row, no `y_key`."""

    x_key: str
    y_key: str
    columns: Sequence[str]
    rows: Sequence[str]
    cells: Sequence[Sequence[Estimate]]
    runs: Sequence[int]
    """The numbers of runs that cells have, each once, in ascending order."""
    iterations: Sequence[int]
    """The numbers of iterations that runs have, in the same way."""


def draw(data: HeatMap) -> bytes:
    """The heat map as a PNG."""
    with mpl.rc_context(STYLE):
        return png(figure_of(data))


def figure_of(data: HeatMap) -> Figure:
    """The heat map in the style that is set."""
    size = [c * n + m for c, n, m in zip(CELL, _shape(data), MARGINS, strict=True)]
    figure = Figure(figsize=(max(size[0], 6.0), size[1]))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    values = np.array(
        [[math.nan if cell.value is None else cell.value for cell in row] for row in data.cells]
    )
    image = axes.imshow(values, cmap=COLOURS, aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for y, row in enumerate(data.cells):
        for x, cell in enumerate(row):
            light = cell.value is None or cell.value > middle
            text = percent(cell).replace(" ±", "\n±")
            axes.text(x, y, text, ha="center", va="center", color="black" if light else "white")
    axes.set_xticks(range(len(data.columns)), data.columns)
    axes.set_yticks(range(len(data.rows)) if data.y_key else [], data.rows if data.y_key else [])
    axes.set(xlabel=data.x_key, ylabel=data.y_key)
    axes.grid(visible=False)
    axes.set_title(_title(data))
    figure.colorbar(image, format=PercentFormatter(xmax=1))
    return figure


def _shape(data: HeatMap) -> tuple[int, int]:
    return len(data.columns), len(data.rows)


def span(numbers: Sequence[int]) -> str:
    """``2``, or ``1 to 3``, of numbers in ascending order."""
    return " to ".join(map(str, dict.fromkeys([numbers[0], numbers[-1]])))


def _title(data: HeatMap) -> str:
    error = "mean ± standard error, " if data.runs[-1] > 1 else ""
    return (
        f"Held-out success after training, iterations: {span(data.iterations)}\n"
        f"{error}runs per cell: {span(data.runs)}"
    )
