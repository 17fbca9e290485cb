"""Where the time of an iteration goes."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.panels import Experiments, Panel
from hgpo_rllib.reporting.style import BLUE, GREEN, GREY, ORANGE, PINK, SKY
from hgpo_rllib.results import ALL, Runs

PHASES = {
    "rollout": BLUE,
    "advantages": ORANGE,
    "update": GREEN,
    "weight sync": PINK,
    "evaluation": SKY,
    "everything else": GREY,
}
SPEED = (
    Panel("Generated tokens / s", {"tokens_per_s": ("", BLUE)}, amount=True),
    Panel("Advantages (ms)", {"advantage_s": ("", ORANGE)}, amount=True, scale=1000),
    Panel("Advantages, peak MiB", {"advantage_peak_mib": ("", ORANGE)}, amount=True),
)


def phase_seconds(runs: Runs) -> pd.DataFrame:
    """Seconds of each phase, indexed by run and iteration; NaN where it was not recorded.

    Rollout is what the learner waited for, which is all of it in the synchronous schedule. An
    evaluation counts to the iteration that it follows.
    """
    rows = runs.metrics.set_index(["run", "iteration"])
    evaluations = runs.evaluations[runs.evaluations["split"] == ALL]
    known = pd.DataFrame(
        {
            "rollout": rows["rollout_wait_s"].fillna(rows["rollout_s"]),
            "advantages": rows["advantage_s"],
            "update": rows["update_s"],
            "weight sync": rows["sync_s"],
        }
    )
    rest = (rows["iteration_s"] - known.sum(axis="columns")).clip(lower=0)
    held_out = evaluations.set_index(["run", "iteration"])["evaluation_s"].reindex(rows.index)
    return known.assign(evaluation=held_out, **{"everything else": rest})


def mean_phases(runs: Runs) -> pd.Series:
    """Mean seconds of a phase in an iteration, over all iterations of the runs."""
    return phase_seconds(runs).dropna(axis="columns", how="all").fillna(0.0).mean()


def time_figure(experiments: Experiments) -> Figure | None:
    """Seconds by phase: of each iteration for one experiment, means for several."""
    means = pd.DataFrame({name: mean_phases(runs) for name, runs in experiments.items()})
    if means.empty:
        return None
    alone = len(experiments) == 1
    figure = style.blank((style.WIDTH, 3.2 if alone else 1.2 + 0.34 * len(experiments)))
    axes = figure.subplots()
    if alone:
        _by_iteration(axes, next(iter(experiments.values())))
    else:
        _by_experiment(axes, means)
    style.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=alone)
    return figure


def _by_iteration(axes: Axes, runs: Runs) -> None:
    by_iteration = phase_seconds(runs).fillna(0.0).groupby("iteration")
    shared = by_iteration.size() == len(runs.members)
    seconds = by_iteration.mean()[shared]
    base = seconds.cumsum(axis="columns") - seconds
    for name, colour in PHASES.items():
        if seconds[name].any():
            axes.bar(
                seconds.index, seconds[name], 0.85, bottom=base[name], color=colour, label=name
            )
    axes.set_title("Seconds of each iteration")
    style.whole_numbers(axes)
    axes.set_ylabel("seconds")


def _by_experiment(axes: Axes, means: pd.DataFrame) -> None:
    seconds = means.reindex([*PHASES]).fillna(0.0)
    base = seconds.cumsum() - seconds
    for name, colour in PHASES.items():
        if seconds.loc[name].any():
            axes.barh(
                [*means], seconds.loc[name], 0.7, left=base.loc[name], color=colour, label=name
            )
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_title("Seconds of an iteration, mean")
