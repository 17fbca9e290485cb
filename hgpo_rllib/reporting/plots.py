"""The pictures of a report: what was reached, and what training did to the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgpo_rllib.reporting import group_plots, style
from hgpo_rllib.reporting.panels import (
    Experiments,
    Line,
    Panel,
    band,
    draw_line,
    draw_panels,
    name_experiments,
)
from hgpo_rllib.reporting.style import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, VERMILION
from hgpo_rllib.results import ALL, Runs

SPLIT_COLOURS = (VERMILION, GREEN, PINK, ORANGE)
RUNNING_MEAN = 10
SEEDS_SHOWN = 6
"""An experiment of more seeds is drawn without a line for each."""

TRAINING = (
    Panel("Mean advantage", {"advantage_mean": ("", BLUE)}),
    Panel("Policy loss", {"policy_loss": ("", BLUE)}),
    Panel("KL to the reference policy", {"kl": ("", BLUE)}),
    Panel("Clip fraction (tokens)", {"clip_fraction": ("", BLUE)}),
    Panel("Mean reward of an episode", {"return_mean": ("", BLUE)}),
    Panel("Success in training", {"success_rate": ("", BLUE)}, rate=True),
)
"""The six that the paper plots."""
POLICY = (
    Panel("Entropy (nats)", {"entropy": ("", PINK)}),
    Panel("Gradient norm", {"grad_norm": ("", GREEN)}),
    Panel("Largest token ratio", {"ratio_max": ("", VERMILION)}),
    Panel("Steps of an episode", {"episode_length": ("", BLUE)}, amount=True),
    Panel(
        "Unusable actions (steps)",
        {"invalid_rate": ("invalid", VERMILION), "inadmissible_rate": ("inadmissible", SKY)},
        rate=True,
    ),
    Panel(
        "Cut at the token limit (steps)",
        {
            "truncated_prompt_rate": ("prompts", ORANGE),
            "truncated_response_rate": ("responses", BLUE),
        },
        rate=True,
    ),
)
CRITIC = (
    Panel("Value loss", {"value_loss": ("", BLUE)}),
    Panel("Explained variance", {"explained_variance": ("", GREEN)}),
    Panel("Clipped values (steps)", {"value_clip_fraction": ("", VERMILION)}),
    Panel("Gradient norm of the critic", {"critic_grad_norm": ("", PINK)}),
)
MISMATCH = (
    Panel(
        "Gap of log-probabilities (nats)",
        {
            "behaviour_logp_gap": ("sampled, largest", VERMILION),
            "behaviour_logp_gap_mean": ("sampled, mean", ORANGE),
            "served_learner_logp_gap": ("probe after update", BLACK),
        },
        log=True,
        legend_below=True,
    ),
    Panel("KL(engine ‖ learner) (nats)", {"behaviour_kl": ("", BLUE)}),
    Panel("Cut weights (tokens)", {"importance_cut_fraction": ("", GREEN)}),
    Panel("Steps under older weights", {"stale_rate": ("", PINK)}, rate=True),
)
SPEED = (
    Panel(
        "Seconds of an iteration",
        {
            "iteration_s": ("all", BLACK),
            "rollout_s": ("rollout", BLUE),
            "update_s": ("update", GREEN),
            "sync_s": ("weight sync", PINK),
        },
        amount=True,
    ),
    Panel("Generated tokens / s", {"tokens_per_s": ("", BLUE)}, amount=True),
    Panel("Advantages (ms)", {"advantage_s": ("", ORANGE)}, amount=True, scale=1000),
)


def pictures(experiments: Experiments) -> dict[str, bytes]:
    """The PNGs of a report by file name."""
    with mpl.rc_context(style.STYLE):
        return {name: style.png(figure) for name, figure in figures(experiments).items()}


def figures(experiments: Experiments) -> dict[str, Figure]:
    """The pictures by file name, in the style that is set; without those that would be empty."""
    makers: dict[str, Callable[[Experiments], Figure | None]] = {
        "learning_curve.png": _learning_curve,
        "training.png": partial(_panels, TRAINING),
        "policy.png": partial(_panels, POLICY),
        "critic.png": partial(_panels, CRITIC),
        "hierarchy.png": group_plots.hierarchy,
        "group_sizes.png": group_plots.histograms,
        "mismatch.png": partial(_panels, MISMATCH, height=3.0),
        "speed.png": partial(_panels, SPEED),
    }
    drawn = {name: make(experiments) for name, make in makers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _panels(
    panels: Sequence[Panel], experiments: Experiments, height: float = 2.4
) -> Figure | None:
    return draw_panels([panel.of(experiments) for panel in panels], experiments, height)


def _learning_curve(experiments: Experiments) -> Figure | None:
    """Left the games trained on, right the held-out ones; without the one not recorded."""
    training = [band(runs, "success_rate") for runs in experiments.values()]
    held_out = [_held_out_band(runs) for runs in experiments.values()]
    drawn: list[Callable[[Axes], None]] = []
    if any(map(len, training)):
        drawn.append(partial(_training_games, bands=training))
    if any(map(len, held_out)):
        (first, *others) = experiments.values()
        if len(first.members) == 1 and not others:
            drawn.append(partial(_splits, run=first))
        else:
            drawn.append(partial(_held_out, experiments=experiments, bands=held_out))
    if not drawn:
        return None
    figure, panels = style.grid(len(drawn), 4.0, columns=2)
    for draw_into, axes in zip(drawn, panels, strict=True):
        draw_into(axes)
        style.rate_axis(axes, "success rate")
        style.whole_numbers(axes)
        style.legend(axes)
    name_experiments(figure, experiments)
    return figure


def _held_out_band(runs: Runs) -> pd.DataFrame:
    return band(runs, "success_rate", runs.evaluations.query("split == @ALL"))


def _training_games(axes: Axes, bands: Sequence[pd.DataFrame]) -> None:
    label = ""
    if len(bands) == 1:
        draw_line(axes, Line(bands[0].assign(error=0.0), "each iteration", SKY, width=0.9))
        label = f"mean of the last {RUNNING_MEAN}"
    for index, values in enumerate(bands):
        smooth = values.rolling(RUNNING_MEAN, min_periods=1).mean()
        draw_line(axes, Line(smooth, label, style.colour_of(index), style.dash_of(index)))
    axes.set_title("Training games")


def _splits(axes: Axes, run: Runs) -> None:
    """The held-out splits of a single run, with the errors of its evaluations."""
    rows = run.evaluations.dropna(subset="success_rate")
    splits = [split for split in rows["split"].unique() if split != ALL]
    # With a single split the pooled curve would only be drawn over it a second time.
    for index, split in enumerate(splits if len(splits) == 1 else [*splits, ALL]):
        pooled = split == ALL
        values = rows[rows["split"] == split]
        axes.errorbar(
            values["iteration"],
            values["success_rate"],
            yerr=values["standard_error"].fillna(0.0),
            color=BLACK if pooled else SPLIT_COLOURS[index % len(SPLIT_COLOURS)],
            linewidth=2.2 if pooled else 1.2,
            marker="o",
            markersize=4,
            label="all held-out" if pooled else split,
        )
    axes.set_title("Held-out games")


def _held_out(axes: Axes, experiments: Experiments, bands: Sequence[pd.DataFrame]) -> None:
    (first, *others) = experiments.values()
    if not others and len(first.members) <= SEEDS_SHOWN:
        rows = first.evaluations.query("split == @ALL").groupby("run", sort=False)
        for index, (_, values) in enumerate(rows):
            seed = values.assign(mean=values["success_rate"], error=0.0).set_index("iteration")
            label = f"seed {values['seed'].iloc[0]}"
            draw_line(axes, Line(seed, label, style.COLOURS[index + 1], width=0.9))
    for index, values in enumerate(bands):
        label = "" if others else f"mean of {len(first.members)} seeds"
        draw_line(axes, Line(values, label, style.colour_of(index), style.dash_of(index), 2.2))
    axes.set_title("Held-out games, all splits")
