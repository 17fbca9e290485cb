"""The pictures of a run, each drawn to the bytes of a PNG.

Figures are made without pyplot, so that drawing leaves no global state and needs no display.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

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

Points = tuple[list[float], list[float]]


def plot_run(run: RunData) -> dict[str, bytes]:
    """The PNGs of one run by file name."""
    with mpl.rc_context(STYLE):
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
        return _png(figure)


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


def _learning_curve(run: RunData) -> bytes:
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
    return _png(figure)


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


def _policy(run: RunData) -> bytes:
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
    return _png(figure)


def _hierarchy(run: RunData) -> bytes:
    figure, (shares, sizes) = _figure(1, 2, (10.0, 4.0))
    fractions = {
        **_levels(run, "level_fraction_k"),
        "zero_advantage_fraction": ("zero advantage", VERMILION),
    }
    _lines(shares, run, "Steps in a group of two or more", fractions)
    for line in shares.lines:
        # Not a depth, so it must not look like one more of them.
        line.set_linestyle("--" if line.get_label() == "zero advantage" else "-")
    shares.set_ylim(-0.03, 1.03)
    shares.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    _lines(sizes, run, "Mean group size", _levels(run, "level_group_size_k"))
    return _png(figure)


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


def _time(run: RunData) -> bytes:
    figure, (seconds, tokens) = _figure(2, 1, (8.0, 5.4), height_ratios=(2, 1), sharex=True)
    iterations = [row["iteration"] for row in run.metrics]
    base = [0.0] * len(iterations)
    for key, (label, colour) in PHASES.items():
        values = [number(row, key) or 0.0 for row in run.metrics]
        if any(values):
            seconds.bar(iterations, values, 0.85, bottom=base, color=colour, label=label)
        base = [low + value for low, value in zip(base, values, strict=True)]
    seconds.set_title("Seconds per iteration")
    seconds.set_ylabel("seconds")
    _finish(seconds, outside=True)
    seconds.set_xlabel("")
    _lines(tokens, run, "Generated tokens per second", {"tokens_per_s": (None, BLUE)})
    tokens.set_ylim(0, 1.15 * max(_series(run.metrics, "tokens_per_s")[1], default=1.0) or 1.0)
    return _png(figure)


def _lines(
    axes: Axes,
    run: RunData,
    title: str,
    keys: Mapping[str, tuple[str | None, Any]],
    log: bool = False,
) -> None:
    """Draw metrics against the iteration; a log axis leaves out what it cannot show."""
    for key, (label, colour) in keys.items():
        x, y = _series(run.metrics, key)
        if log:
            y = [value if value > 0 else math.nan for value in y]
        if any(math.isfinite(value) for value in y):
            # A line through one or two points is invisible without marks on them.
            marker = "o" if len(x) <= 40 else None
            axes.plot(x, y, color=colour, label=label, marker=marker, markersize=3)
    if log and axes.lines:
        axes.set_yscale("log")
    axes.set_title(title)
    _finish(axes)


def _series(rows: Iterable[Row], key: str) -> Points:
    found = [(float(row["iteration"]), number(row, key)) for row in rows]
    known = [(x, y) for x, y in found if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _figure(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def _rate_axis(axes: Axes, label: str) -> None:
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.set_ylabel(label)


def _finish(axes: Axes, outside: bool = False) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if not axes.has_data():
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=GREY)
        axes.set(xticks=[], yticks=[])
    elif axes.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(**(place if outside else {"loc": "best"}))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
