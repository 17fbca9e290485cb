"""The style of plots: colors, fonts, and the layout shared by all panels.

Figures are created without pyplot, so that drawing changes no global state and needs no display.
"""

import io
from collections.abc import Sequence
from typing import Any

from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from matplotlib.transforms import ScaledTranslation

# Okabe and Ito's palette, distinguishable with common kinds of color blindness.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, BLACK, GREY = "#D55E00", "#56B4E9", "#222222", "#8A8A8A"
COLORS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK)
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")

WIDTH = 10.0  # inches, for all plots of a report
DPI = 150
MARKED = 40  # lines with at most this many points have markers
LEGEND_ROW = 0.21  # inches
LABELS_BELOW = 0.48  # inches below the axes for the tick and axis labels
LEGEND_CHARACTERS = 105  # that fit side by side above a plot
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#444444",
    "axes.edgecolor": "#8A8A8A",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.limits": (-5, 6),
    "axes.formatter.use_mathtext": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.7,
    "xtick.color": "#8A8A8A",
    "ytick.color": "#8A8A8A",
    "xtick.labelcolor": "#444444",
    "ytick.labelcolor": "#444444",
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "axes.prop_cycle": cycler(color=COLORS),
    "lines.linewidth": 1.7,
    "lines.markersize": 3,
    "errorbar.capsize": 3,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}


def color_of(index: int) -> str:
    """Return the color of curve `index`."""
    return COLORS[index % len(COLORS)]


def dash_of(index: int) -> Any:
    """Return the dashes of curve `index`, which change when the colors repeat."""
    return DASHES[index // len(COLORS) % len(DASHES)]


def grid(panels: int, height: float, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure with `panels` axes in rows of `columns`, each `height` inches high."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.3))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def rate_axis(axes: Axes) -> None:
    """Set the y-axis to 0 to 100 %."""
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def legend_below(axes: Axes) -> Legend | None:
    """Add a legend below the x-axis label, where it covers no lines, if any curve has a label."""
    if not axes.get_legend_handles_labels()[0]:
        return None
    under = ScaledTranslation(0, -LABELS_BELOW, axes.figure.dpi_scale_trans)
    return axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + under,
        borderaxespad=0.0,
        ncols=2,
    )


def legend_above(figure: Figure, names: Sequence[str]) -> None:
    """Add one legend of curve colors for all panels."""
    handles = [
        Line2D([], [], color=color_of(i), linestyle=dash_of(i), linewidth=2.2, label=name)
        for i, name in enumerate(names)
    ]
    columns = min(len(names), max(1, LEGEND_CHARACTERS // (max(map(len, names)) + 6)))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LEGEND_ROW * -(-len(names) // columns))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
