"""Panels of lines with bands, side by side in one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.curves import Band, Curve, band

NEARLY_ALL = 0.99
"""Share of a mean that its error may be on a log axis."""


@dataclass(frozen=True)
class Line:
    """One line; its name, if any, goes into the panel's legend."""

    values: Band
    label: str = ""
    colour: Any = style.BLUE
    dash: str = "-"
    width: float = 1.7


@dataclass(frozen=True)
class Panel:
    """Lines against the iteration, or against `x_label`."""

    title: str
    lines: Sequence[Line]
    rate: bool = False
    """The axis is from 0 to 100 %."""
    amount: bool = False
    """The axis begins at 0."""
    log: bool = False
    """Values that are not positive become gaps."""
    x_label: str = "iteration"
    legend_below: bool = False
    """The legend would cover lines, wherever it is among them."""
    neutral_legend: bool = False
    """Colours are those of curves: names are of dashes."""


@dataclass(frozen=True)
class Metric:
    """Metrics that share a panel: label and colour (of a single curve) by name."""

    title: str
    keys: Mapping[str, tuple[str, str]]
    rate: bool = False
    amount: bool = False
    log: bool = False
    legend_below: bool = False
    scale: float = 1.0

    def panel(self, curves: Sequence[Curve]) -> Panel:
        """A line for each key, or for each curve where there are several."""
        lines = [
            self._line(place, key, index, curve, len(curves) > 1)
            for place, key in enumerate(self.keys)
            for index, curve in enumerate(curves)
        ]
        return Panel(
            self.title,
            lines,
            neutral_legend=len(curves) > 1,
            rate=self.rate,
            amount=self.amount,
            log=self.log,
            legend_below=self.legend_below,
        )

    def _line(self, place: int, key: str, index: int, curve: Curve, several: bool) -> Line:
        values = scaled(band(curve, key), self.scale)
        label, colour = self.keys[key]
        if not several:
            return Line(values, label, colour)
        if len(self.keys) == 1:
            return Line(values, "", style.colour_of(index), style.dash_of(index))
        # Colours are taken by the curves; dashes tell the metrics apart.
        named = label if index == 0 else ""
        return Line(values, named, style.colour_of(index), style.DASHES[place])


def scaled(values: Band, factor: float) -> Band:
    """In another unit."""
    return Band(values.x, *([v * factor for v in part] for part in (values.mean, values.error)))


def draw_panels(
    panels: Sequence[Panel], curves: Sequence[Curve], height: float, columns: int = 3
) -> Figure | None:
    """The panels that have a line, `height` inches each; None where none has one."""
    known = [panel for panel in map(_visible, panels) if panel.lines]
    if not known:
        return None
    figure, axes = style.grid(len(known), height, columns)
    for panel, place in zip(known, axes, strict=True):
        draw(place, panel)
    name_curves(figure, curves)
    return figure


def name_curves(figure: Figure, curves: Sequence[Curve]) -> None:
    """Say above the panels which colour is which curve, where there are several."""
    if len(curves) > 1:
        style.legend_above(figure, [curve.name for curve in curves])


def draw(axes: Axes, panel: Panel) -> None:
    """Draw one panel."""
    for line in panel.lines:
        draw_line(axes, line)
    axes.set_title(panel.title)
    if panel.log:
        axes.set_yscale("log")
    if panel.rate:
        style.rate_axis(axes)
    if panel.amount:
        style.from_zero(axes)
    style.whole_numbers(axes, panel.x_label)
    shown = style.legend_below(axes) if panel.legend_below else style.legend(axes)
    for handle in shown.get_lines() if shown and panel.neutral_legend else []:
        handle.set(color=style.GREY, marker="")


def draw_line(axes: Axes, line: Line) -> None:
    """A line, and the standard error over runs as a band where it is known."""
    values = line.values
    axes.plot(
        values.x,
        values.mean,
        color=line.colour,
        linestyle=line.dash,
        linewidth=line.width,
        # A line through one or two points is invisible without marks on them.
        marker="o" if len(values.x) <= style.MARKED else None,
        label=line.label or None,
    )
    if any(values.error):
        mean, error = np.array(values.mean), np.array(values.error)
        low, high = mean - error, mean + error
        axes.fill_between(values.x, low, high, color=line.colour, alpha=0.18, linewidth=0)


def _visible(panel: Panel) -> Panel:
    lines = [_above_zero(line) for line in panel.lines] if panel.log else panel.lines
    return replace(panel, lines=[x for x in lines if any(map(math.isfinite, x.values.mean))])


def _above_zero(line: Line) -> Line:
    """A band that reaches 0 has no lower end on a log axis, and would hide all else."""
    values = line.values
    mean = [value if value > 0 else math.nan for value in values.mean]
    pairs = zip(values.mean, values.error, strict=True)
    error = [e if e < NEARLY_ALL * m else 0.0 for m, e in pairs]
    return replace(line, values=replace(values, mean=mean, error=error))
