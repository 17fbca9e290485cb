"""The pictures of a run, each drawn to the bytes of a PNG.

Figures are made without pyplot, so that drawing leaves no global state and needs no display.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.reporting.run_data import ALL, Row, RunData
from hgpo_rllib.reporting.stats import number, over_seeds, success

# Okabe and Ito's palette: distinct under the common kinds of colour blindness.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, BLACK, GREY = "#D55E00", "#56B4E9", "#222222", "#8A8A8A"
SPLIT_COLOURS = (VERMILION, GREEN, PINK, ORANGE)

PHASES = {
    "rollout_s": ("rollout", BLUE),
    "advantage_s": ("advantages", ORANGE),
    "update_s": ("update", GREEN),
    "sync_s": ("weight sync", PINK),
    "evaluation_s": ("evaluation", SKY),
}

ORACLE = "whole history (Oracle)"
GAPS = {
    "oracle_gap_trajectory": ("trajectory-level", VERMILION),
    "oracle_gap_step": ("step-level", ORANGE),
    "oracle_gap_hgpo": ("HGPO", BLUE),
}
# Not depths, so they must not look like one more of them.
DASHES = {"zero_advantage_fraction": "--", "oracle_fraction": ":", "oracle_group_size": ":"}

RUNNING_MEAN = 10
DPI = 150
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PINK, SKY]),
    "lines.linewidth": 1.8,
    "errorbar.capsize": 3,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
}

# Places of a legend that hide no data.
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 3}

Points = tuple[list[float], list[float]]


def plot_run(run: RunData) -> dict[str, bytes]:
    """The PNGs of one run by file name."""
    with mpl.rc_context(STYLE):
        return {name: png(figure) for name, figure in run_figures(run).items()}


def run_figures(run: RunData) -> dict[str, Figure]:
    """The pictures of one run by file name, in the style that is set."""
    return {
        "learning_curve.png": _learning_curve(run),
        "policy.png": _policy(run),
        "hierarchy.png": _hierarchy(run),
        "time.png": _time(run),
    }


def plot_seeds(runs: Sequence[RunData]) -> bytes:
    """Held-out success of several seeds, with their mean where all of them were evaluated."""
    with mpl.rc_context(STYLE):
        figure, (axes,) = _figure(1, 1, (8.0, 4.5))
        for run in runs:
            x, y = _series(run.evaluations_of(ALL), "success_rate")
            label = f"seed {run.seed}" if len(runs) <= 6 else None
            axes.plot(x, y, linewidth=1, alpha=0.75, marker="o", markersize=2.5, label=label)
        iterations, means, errors = seed_curve(runs)
        axes.plot(
            iterations, means, color=BLACK, linewidth=2.4, marker="o", markersize=4, label="mean"
        )
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(
            iterations, low, high, color=BLACK, alpha=0.15, linewidth=0, label="± standard error"
        )
        _rate_axis(axes, "held-out success")
        axes.set_title(f"Held-out success, {len(runs)} seeds")
        _finish(axes)
        return png(figure)


def seed_curve(runs: Sequence[RunData]) -> tuple[list[float], list[float], list[float]]:
    """Iterations at which every run was evaluated; mean and standard error over the runs."""
    curves = [_series(run.evaluations_of(ALL), "success_rate") for run in runs]
    rates = [dict(zip(x, y, strict=True)) for x, y in curves]
    shared = sorted(set.intersection(*(set(rate) for rate in rates))) if rates else []
    estimates = [over_seeds([rate[iteration] for rate in rates]) for iteration in shared]
    return shared, [e.value or 0.0 for e in estimates], [e.error or 0.0 for e in estimates]


def running_mean(values: Sequence[float], window: int = RUNNING_MEAN) -> list[float]:
    """Mean of each value and up to `window` - 1 before it."""
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def _learning_curve(run: RunData) -> Figure:
    figure, (axes,) = _figure(1, 1, (8.0, 4.5))
    x, y = _series(run.metrics, "success_rate")
    if x:
        axes.plot(x, y, color=SKY, linewidth=1, alpha=0.8, label="training, each iteration")
        axes.plot(x, running_mean(y), color=BLUE, label=f"training, mean of last {RUNNING_MEAN}")
    # With a single split the pooled curve would only be drawn over it a second time.
    splits = run.splits if len(run.splits) == 1 else [*run.splits, ALL]
    for index, split in enumerate(splits):
        pooled = split == ALL
        _held_out(
            axes,
            run.evaluations_of(split),
            "held out, all" if pooled else f"held out, {split}",
            BLACK if pooled else SPLIT_COLOURS[index % len(SPLIT_COLOURS)],
            2.2 if pooled else 1.2,
        )
    _rate_axis(axes, "success rate")
    axes.set_title("Success while training and on held-out games (± standard error)")
    _finish(axes)
    return figure


def _held_out(axes: Axes, rows: list[Row], label: str, colour: str, width: float) -> None:
    rows = [row for row in rows if success(row).value is not None]
    if not rows:
        return
    axes.errorbar(
        [row["iteration"] for row in rows],
        [success(row).value or 0.0 for row in rows],
        yerr=[success(row).error or 0.0 for row in rows],
        color=colour,
        linewidth=width,
        marker="o",
        markersize=4,
        label=label,
    )


def _policy(run: RunData) -> Figure:
    figure, panels = _figure(2, 3, (10.0, 5.4))
    kl, clip, norm, entropy, gap, actions = panels
    _lines(kl, run, "KL to the reference policy", {"kl": (None, BLUE)})
    _lines(clip, run, "Clipped share of tokens", {"clip_fraction": (None, VERMILION)})
    _lines(norm, run, "Gradient norm", {"grad_norm": (None, GREEN)})
    _lines(entropy, run, "Entropy", {"entropy": (None, PINK)})
    gaps = {
        "served_learner_logp_gap": ("served vs learner", BLACK),
        "behaviour_logp_gap": ("behaviour vs learner", ORANGE),
    }
    _lines(gap, run, "Log-probability gap", gaps, log=True)
    rates = {"invalid_rate": ("invalid", VERMILION), "inadmissible_rate": ("inadmissible", SKY)}
    _lines(actions, run, "Share of unusable actions", rates)
    return figure


def _hierarchy(run: RunData) -> Figure:
    figure, (shares, sizes, gaps, bins) = _figure(2, 2, (10.0, 8.6))
    fractions = {
        **_levels(run, "level_fraction_k"),
        "oracle_fraction": (ORACLE, BLACK),
        "zero_advantage_fraction": ("zero advantage", VERMILION),
    }
    _lines(shares, run, "Steps in a group of two or more", fractions, **BELOW)
    _rate_axis(shares)
    means = {**_levels(run, "level_group_size_k"), "oracle_group_size": (ORACLE, BLACK)}
    _lines(sizes, run, "Mean group size", means, **BELOW)
    _lines(gaps, run, "Distance from the Oracle estimate", GAPS, **BELOW)
    gaps.set_ylabel("mean |A − A$_{oracle}$|")
    _from_zero(gaps)
    _size_bars(bins, run)
    return figure


def _size_bars(axes: Axes, run: RunData) -> None:
    """One bar a depth, stacked from the shares of steps by the size of their group."""
    means = size_shares(run.metrics)
    base = [0.0] * len(means)
    # From pale to dark without the white end, on which a segment could not be seen.
    shades = mpl.colormaps["Blues"]
    for index, label in enumerate(SIZE_LABELS):
        heights = [shares[index] for shares in means.values()]
        colour = shades(0.12 + 0.88 * index / (len(SIZE_LABELS) - 1))
        axes.bar(list(means), heights, 0.75, bottom=base, color=colour, label=label)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    axes.set_title("Steps by size of their group")
    _rate_axis(axes)
    axes.set_ylim(0, 1.0)
    axes.grid(visible=False)
    _finish(axes, **BESIDE, title="group size", reverse=True)
    axes.set_xlabel("shared history, k")


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


def _levels(run: RunData, prefix: str) -> dict[str, tuple[str, Any]]:
    """The recorded depths under `prefix`, darker the longer the shared history."""
    found = {key for row in run.metrics for key in row if re.fullmatch(prefix + r"\d+", key)}
    depths = sorted(int(key.removeprefix(prefix)) for key in found)
    shades = mpl.colormaps["viridis"].reversed()
    span = max(len(depths) - 1, 1)
    return {
        f"{prefix}{depth}": (f"k = {depth}", shades(0.2 + 0.8 * index / span))
        for index, depth in enumerate(depths)
    }


def _time(run: RunData) -> Figure:
    figure = _blank((10.0, 5.8))
    small = ("tokens", "estimator", "memory")
    panels = figure.subplot_mosaic([["phases"] * 3, [*small]], height_ratios=(3, 2))
    _phases(panels["phases"], run)
    _lines(panels["tokens"], run, "Generated tokens / s", {"tokens_per_s": (None, BLUE)})
    seconds = {"advantage_s": (None, ORANGE)}
    _lines(panels["estimator"], run, "Advantages, milliseconds", seconds, scale=1000)
    memory = {"advantage_peak_mib": (None, ORANGE)}
    _lines(panels["memory"], run, "Advantages, peak MiB", memory)
    for name in small:
        _from_zero(panels[name])
    return figure


def _phases(axes: Axes, run: RunData) -> None:
    iterations = [row["iteration"] for row in run.metrics]
    base = [0.0] * len(iterations)
    for key, (label, colour) in PHASES.items():
        values = [number(row, key) or 0.0 for row in run.metrics]
        if any(values):
            axes.bar(iterations, values, 0.85, bottom=base, color=colour, label=label)
        base = [low + value for low, value in zip(base, values, strict=True)]
    axes.set_title("Seconds per iteration")
    axes.set_ylabel("seconds")
    _finish(axes, **BESIDE)


def _lines(
    axes: Axes,
    run: RunData,
    title: str,
    keys: Mapping[str, tuple[str | None, Any]],
    log: bool = False,
    scale: float = 1.0,
    **legend: Any,
) -> None:
    """Draw metrics times `scale` against the iteration; a log axis leaves gaps."""
    for key, (label, colour) in keys.items():
        x, y = _series(run.metrics, key)
        y = [value * scale if value > 0 or not log else math.nan for value in y]
        if any(math.isfinite(value) for value in y):
            # A line through one or two points is invisible without marks on them.
            marker = "o" if len(x) <= 40 else None
            axes.plot(
                x,
                y,
                color=colour,
                label=label,
                linestyle=DASHES.get(key, "-"),
                marker=marker,
                markersize=3,
            )
    if log and axes.lines:
        axes.set_yscale("log")
    axes.set_title(title)
    _finish(axes, **legend)


def _series(rows: Iterable[Row], key: str) -> Points:
    found = [(float(row["iteration"]), number(row, key)) for row in rows]
    known = [(x, y) for x, y in found if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    figure = _blank(size)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _blank(size: tuple[float, float]) -> Figure:
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure


def _from_zero(axes: Axes) -> None:
    """Let the axis of an amount begin at 0."""
    if axes.lines:
        top = axes.dataLim.ymax
        axes.set_ylim(0, 1.15 * top if top > 0 else 1.0)


def _rate_axis(axes: Axes, label: str = "") -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.set_ylabel(label)


def _finish(axes: Axes, **legend: Any) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if not axes.has_data():
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=GREY)
        axes.set(xticks=[], yticks=[])
    elif axes.get_legend_handles_labels()[0]:
        axes.legend(**({"loc": "best"} | legend))


def png(figure: Figure) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
