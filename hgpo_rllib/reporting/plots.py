"""The pictures of a report: what was reached, and what training did to the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hgpo_rllib.reporting import group_plots, style
from hgpo_rllib.reporting.curves import Band, Curve, band
from hgpo_rllib.reporting.families import family_rates
from hgpo_rllib.reporting.panels import Line, Metric, draw_line, draw_panels, name_curves
from hgpo_rllib.reporting.run_data import ALL, Row, RunData
from hgpo_rllib.reporting.stats import success
from hgpo_rllib.reporting.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION
from hgpo_rllib.reporting.time_plots import SPEED, time_figure

SPLIT_COLOURS = (VERMILION, GREEN, PINK, ORANGE)
RUNNING_MEAN = 10
SEEDS_SHOWN = 6
"""A curve of more seeds is drawn without a line for each."""

TRAINING = (
    Metric("Mean advantage", {"advantage_mean": ("", BLUE)}),
    Metric("Policy loss", {"policy_loss": ("", BLUE)}),
    Metric("KL to the reference policy", {"kl": ("", BLUE)}),
    Metric("Clip fraction (tokens)", {"clip_fraction": ("", BLUE)}),
    Metric("Mean reward of an episode", {"return_mean": ("", BLUE)}),
    Metric("Success in training", {"success_rate": ("", BLUE)}, rate=True),
)
"""The six that the paper plots."""
POLICY = (
    Metric("Entropy (nats)", {"entropy": ("", PINK)}),
    Metric("Gradient norm", {"grad_norm": ("", GREEN)}),
    Metric("Largest token ratio", {"ratio_max": ("", VERMILION)}),
    Metric("Steps of an episode", {"episode_length": ("", BLUE)}, amount=True),
    Metric(
        "Unusable actions (steps)",
        {"invalid_rate": ("invalid", VERMILION), "inadmissible_rate": ("inadmissible", SKY)},
        rate=True,
    ),
    Metric(
        "Cut at the token limit (steps)",
        {
            "truncated_prompt_rate": ("prompts", ORANGE),
            "truncated_response_rate": ("responses", BLUE),
        },
        rate=True,
    ),
)
CRITIC = (
    Metric("Value loss", {"value_loss": ("", BLUE)}),
    Metric("Explained variance", {"explained_variance": ("", GREEN)}),
    Metric("Clipped values (steps)", {"value_clip_fraction": ("", VERMILION)}),
    Metric("Gradient norm of the critic", {"critic_grad_norm": ("", PINK)}),
)
MISMATCH = (
    Metric(
        "Gap of log-probabilities (nats)",
        {
            "behaviour_logp_gap": ("sampled, largest", VERMILION),
            "behaviour_logp_gap_mean": ("sampled, mean", ORANGE),
            "served_learner_logp_gap": ("probe after update", BLACK),
        },
        log=True,
        legend_below=True,
    ),
    Metric("KL(engine ‖ learner) (nats)", {"behaviour_kl": ("", BLUE)}),
    Metric("Cut weights (tokens)", {"importance_cut_fraction": ("", GREEN)}),
    Metric("Steps under older weights", {"stale_rate": ("", PINK)}, rate=True),
)


def pictures(curves: Sequence[Curve]) -> dict[str, bytes]:
    """The PNGs of a report by file name."""
    with mpl.rc_context(style.STYLE):
        return {name: style.png(figure) for name, figure in figures(curves).items()}


def figures(curves: Sequence[Curve]) -> dict[str, Figure]:
    """The pictures by file name, in the style that is set; without those that would be empty."""
    makers: dict[str, Callable[[Sequence[Curve]], Figure | None]] = {
        "learning_curve.png": _learning_curve,
        "families.png": _families,
        "training.png": lambda curves: _metrics(TRAINING, curves),
        "policy.png": lambda curves: _metrics(POLICY, curves),
        "critic.png": lambda curves: _metrics(CRITIC, curves),
        "hierarchy.png": group_plots.hierarchy,
        "group_sizes.png": group_plots.histograms,
        "mismatch.png": lambda curves: _metrics(MISMATCH, curves, height=3.0),
        "time.png": time_figure,
        "speed.png": lambda curves: _metrics(SPEED, curves),
    }
    drawn = {name: make(curves) for name, make in makers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def running_mean(values: Sequence[float], window: int = RUNNING_MEAN) -> list[float]:
    """Mean of each value and up to `window` - 1 before it."""
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def _metrics(
    metrics: Sequence[Metric], curves: Sequence[Curve], height: float = 2.4
) -> Figure | None:
    return draw_panels([metric.panel(curves) for metric in metrics], curves, height)


def _pooled(run: RunData) -> Sequence[Row]:
    return run.evaluations_of(ALL)


def _learning_curve(curves: Sequence[Curve]) -> Figure | None:
    """Left the games trained on, right the held-out ones; without the one not recorded."""
    training = [band(curve, "success_rate") for curve in curves]
    held_out = [band(curve, "success_rate", _pooled) for curve in curves]
    drawn: list[Callable[[Axes], None]] = []
    if any(values.x for values in training):
        drawn.append(lambda axes: _training_games(axes, training))
    if any(values.x for values in held_out):
        single = curves[0].runs[0] if len(curves) == len(curves[0].runs) == 1 else None
        drawn.append(
            lambda axes: _splits(axes, single) if single else _held_out(axes, curves, held_out)
        )
    if not drawn:
        return None
    figure, panels = style.grid(len(drawn), 4.0, columns=2)
    for draw_into, axes in zip(drawn, panels, strict=True):
        draw_into(axes)
        style.rate_axis(axes, "success rate")
        style.whole_numbers(axes)
        style.legend(axes)
    name_curves(figure, curves)
    return figure


def _training_games(axes: Axes, bands: Sequence[Band]) -> None:
    label = ""
    if len(bands) == 1:
        raw = replace(bands[0], error=[])
        draw_line(axes, Line(raw, "each iteration", SKY, width=0.9))
        label = f"mean of the last {RUNNING_MEAN}"
    for index, values in enumerate(bands):
        smooth = Band(values.x, running_mean(values.mean), running_mean(values.error))
        draw_line(axes, Line(smooth, label, style.colour_of(index), style.dash_of(index)))
    axes.set_title("Training games")


def _splits(axes: Axes, run: RunData) -> None:
    """The held-out splits of a single run, with the errors of its evaluations."""
    # With a single split the pooled curve would only be drawn over it a second time.
    splits = run.splits if len(run.splits) == 1 else [*run.splits, ALL]
    for index, split in enumerate(splits):
        pooled = split == ALL
        rows = [row for row in run.evaluations_of(split) if success(row).value is not None]
        axes.errorbar(
            [row["iteration"] for row in rows],
            [success(row).value or 0.0 for row in rows],
            yerr=[success(row).error or 0.0 for row in rows],
            color=BLACK if pooled else SPLIT_COLOURS[index % len(SPLIT_COLOURS)],
            linewidth=2.2 if pooled else 1.2,
            marker="o",
            markersize=4,
            label="all held-out" if pooled else split,
        )
    axes.set_title("Held-out games")


def _held_out(axes: Axes, curves: Sequence[Curve], bands: Sequence[Band]) -> None:
    alone = len(curves) == 1
    runs = curves[0].runs if alone and len(curves[0].runs) <= SEEDS_SHOWN else []
    for index, run in enumerate(runs):
        values = band(replace(curves[0], runs=[run]), "success_rate", _pooled)
        draw_line(axes, Line(values, f"seed {run.seed}", style.COLOURS[index + 1], width=0.9))
    for index, values in enumerate(bands):
        label = f"mean of {len(curves[0].runs)} seeds" if alone else ""
        draw_line(axes, Line(values, label, style.colour_of(index), style.dash_of(index), 2.2))
    axes.set_title("Held-out games, all splits")


def _families(curves: Sequence[Curve]) -> Figure | None:
    """Bars of held-out success: before and after, or after for each of several curves."""
    bars = family_rates(curves)
    if not bars:
        return None
    names = sorted({name for rates in bars.values() for name in rates}, reverse=True)
    figure = style.blank((style.WIDTH, 0.9 + 0.24 * len(names) * (len(bars) + 0.8)))
    axes = figure.subplots()
    thick = 0.8 / len(bars)
    shades = [GREY, BLUE] if "before" in bars else [style.colour_of(i) for i in range(len(bars))]
    for index, (label, rates) in enumerate(bars.items()):
        known = {place: rates[name] for place, name in enumerate(names) if name in rates}
        axes.barh(
            [place + 0.4 - (index + 0.5) * thick for place in known],
            [estimate.value or 0.0 for estimate in known.values()],
            0.9 * thick,
            xerr=[estimate.error or 0.0 for estimate in known.values()],
            color=shades[index],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444444"},
            label=label,
        )
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set(xlim=(0, 1), ylim=(-0.6, len(names) - 0.4), xlabel="held-out success")
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    if len(curves) == 1:
        style.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    name_curves(figure, curves)
    return figure
