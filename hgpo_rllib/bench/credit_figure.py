"""The figure of `hgpo bench credit`."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes

from hgpo_rllib.bench.fidelity import Interval
from hgpo_rllib.reporting import style

SHOWN = ("own", "hgpo", "gigpo", "grpo")  # estimators by depth
OFFSET = 0.16  # between the marks of one depth


def figure(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return a PNG with the correlations with the truth, by estimator and by depth of history.

    Args:
        tables: the result of `hgpo_rllib.bench.fidelity.tables`.
    """
    with mpl.rc_context(style.STYLE):
        drawn, (left, right) = style.grid(2, 4.6, columns=2)
        rows = tables["correlation with the true advantage"][::-1]
        for place, row in enumerate(rows):
            _mark(left, row["pearson_corrected"], place, style.BLUE, horizontal=True)
        left.set_yticks(range(len(rows)), [row["estimator"] for row in rows])
        left.set_xlabel("corrected correlation with the true advantage")
        left.set_title("Estimators, all sampled steps")
        levels = tables["by depth of history"]
        for index, name in enumerate(SHOWN):
            for place, row in enumerate(levels):
                shift = place + OFFSET * (index - (len(SHOWN) - 1) / 2)
                _mark(right, row[name], shift, style.colour_of(index), horizontal=False)
            right.plot([], [], "o", color=style.colour_of(index), label=name)
        right.set_xticks(
            range(len(levels)), [f"{row['level']}\n{row['compared']:.0%}" for row in levels]
        )
        right.set_ylim(-1.05, 1.05)
        right.set_xlabel("level, and share of the steps that it compares")
        right.set_ylabel("correlation, not corrected")
        right.set_title("Only steps that a level compares")
        style.legend(right)
        return style.png(drawn)


def _mark(axes: Axes, found: Interval, place: float, colour: str, horizontal: bool) -> None:
    """Draw an interval; nothing if it is unknown."""
    if found.value is None or found.low is None or found.high is None:
        return
    error = [[max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]]
    x, y = (found.value, place) if horizontal else (place, found.value)
    of_axis: dict[str, Any] = {"xerr" if horizontal else "yerr": error}
    axes.errorbar(x, y, fmt="o", markersize=4, color=colour, linewidth=1.3, **of_axis)
