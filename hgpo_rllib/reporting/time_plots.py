"""Where the time of an iteration goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.curves import Curve
from hgpo_rllib.reporting.panels import Metric
from hgpo_rllib.reporting.run_data import ALL, Row, RunData
from hgpo_rllib.reporting.stats import number
from hgpo_rllib.reporting.style import BLUE, GREEN, GREY, ORANGE, PINK, SKY

PHASES = {
    "rollout": BLUE,
    "advantages": ORANGE,
    "update": GREEN,
    "weight sync": PINK,
    "evaluation": SKY,
    "everything else": GREY,
}
SPEED = (
    Metric("Generated tokens / s", {"tokens_per_s": ("", BLUE)}, amount=True),
    Metric("Advantages (ms)", {"advantage_s": ("", ORANGE)}, amount=True, scale=1000),
    Metric("Advantages, peak MiB", {"advantage_peak_mib": ("", ORANGE)}, amount=True),
)


def phase_seconds(run: RunData) -> dict[float, dict[str, float]]:
    """Seconds of each phase by iteration; phases that were not recorded are left out.

    Rollout is what the learner waited for, which is all of it in the synchronous schedule.
    """
    evaluations = {row["iteration"]: row for row in run.evaluations_of(ALL)}
    return {
        row["iteration"]: _phases(row, evaluations.get(row["iteration"])) for row in run.metrics
    }


def _phases(row: Row, evaluation: Row | None) -> dict[str, float]:
    waited = number(row, "rollout_wait_s")
    seconds = {
        "rollout": number(row, "rollout_s") if waited is None else waited,
        "advantages": number(row, "advantage_s"),
        "update": number(row, "update_s"),
        "weight sync": number(row, "sync_s"),
    }
    known = {name: value for name, value in seconds.items() if value is not None}
    whole = number(row, "iteration_s")
    rest = {} if whole is None else {"everything else": max(0.0, whole - sum(known.values()))}
    held_out = number(evaluation, "evaluation_s")
    return known | ({} if held_out is None else {"evaluation": held_out}) | rest


def mean_phases(runs: Sequence[RunData]) -> dict[str, float]:
    """Mean seconds of a phase in an iteration, over all iterations of the runs."""
    tables = [table for run in runs for table in phase_seconds(run).values()]
    return {
        name: sum(table.get(name, 0.0) for table in tables) / len(tables)
        for name in PHASES
        if any(name in table for table in tables)
    }


def time_figure(curves: Sequence[Curve]) -> Figure | None:
    """Seconds by phase: of each iteration for one curve, means for several."""
    means = {curve.name: mean_phases(curve.runs) for curve in curves}
    if not any(means.values()):
        return None
    alone = len(curves) == 1
    figure = style.blank((style.WIDTH, 3.2 if alone else 1.2 + 0.34 * len(curves)))
    if alone:
        _by_iteration(figure.subplots(), curves[0])
    else:
        _by_curve(figure.subplots(), means)
    return figure


def _by_iteration(axes: Axes, curve: Curve) -> None:
    tables = [phase_seconds(run) for run in curve.runs]
    iterations = sorted(set.intersection(*map(set, tables)))
    base = [0.0] * len(iterations)
    for name, colour in PHASES.items():
        values = [fmean(table[x].get(name, 0.0) for table in tables) for x in iterations]
        if any(values):
            axes.bar(iterations, values, 0.85, bottom=base, color=colour, label=name)
        base = [low + value for low, value in zip(base, values, strict=True)]
    axes.set_title("Seconds of each iteration")
    style.whole_numbers(axes)
    axes.set_ylabel("seconds")
    style.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)


def _by_curve(axes: Axes, means: Mapping[str, Mapping[str, float]]) -> None:
    names = list(means)
    base = [0.0] * len(names)
    for phase, colour in PHASES.items():
        values = [means[name].get(phase, 0.0) for name in names]
        if any(values):
            axes.barh(names, values, 0.7, left=base, color=colour, label=phase)
        base = [low + value for low, value in zip(base, values, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_title("Seconds of an iteration, mean")
    style.legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))
