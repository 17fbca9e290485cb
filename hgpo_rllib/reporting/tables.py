"""The numbers that a report states in words: rates, times, and what weighs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hgpo_rllib.reporting import stats
from hgpo_rllib.reporting.curves import Curve, compared_settings, flat
from hgpo_rllib.reporting.families import family_rates
from hgpo_rllib.reporting.run_data import ALL, RunData
from hgpo_rllib.reporting.stats import Estimate, decimal, duration, number, over_seeds, percent
from hgpo_rllib.reporting.stats import points as in_points
from hgpo_rllib.reporting.style import colour_of
from hgpo_rllib.reporting.time_plots import PHASES, mean_phases, phase_seconds

PAPER_METRICS = {
    "advantage_mean": "mean advantage",
    "policy_loss": "policy loss",
    "kl": "KL",
    "clip_fraction": "clip fraction",
    "return_mean": "mean reward",
    "success_rate": "success",
}


def before(curve: Curve, split: str = ALL) -> Estimate:
    """Held-out success of the warm start: of a run with its own error, else over runs."""
    return _pooled(curve, lambda run: stats.success(run.before(split)))


def after(curve: Curve, split: str = ALL) -> Estimate:
    """Held-out success of the newest evaluation."""
    return _pooled(curve, lambda run: stats.success(run.after(split)))


def change(curve: Curve, split: str = ALL) -> Estimate:
    """After less before, run by run."""
    return _pooled(curve, lambda run: _change(run, split))


def _change(run: RunData, split: str = ALL) -> Estimate:
    return stats.success(run.after(split)) - stats.success(run.before(split))


def _pooled(curve: Curve, value: Callable[[RunData], Estimate]) -> Estimate:
    estimates = [value(run) for run in curve.runs]
    return estimates[0] if len(estimates) == 1 else over_seeds([e.value for e in estimates])


def headline(curve: Curve) -> dict[str, str] | None:
    """The tiles of a report on one curve, if it was evaluated."""
    if before(curve).value is None and after(curve).value is None:
        return None
    return {
        "before": percent(before(curve)),
        "after": percent(after(curve)),
        "change": in_points(change(curve)),
    }


def size_of(run: RunData) -> str:
    """How far a run went, in one line."""
    last = run.metrics[-1] if run.metrics else {}
    ended = "" if run.summary is not None else " · not finished"
    steps = sum(number(row, "env_steps") or 0.0 for row in run.metrics)
    return (
        f"{last.get('iteration', 0)} iterations · {decimal(steps, 0)} environment steps in "
        f"training · {duration(number(last, 'wall_s'))}{ended}"
    )


def curve_rows(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """The curves side by side."""
    return [
        {
            "name": curve.name,
            "colour": colour_of(index),
            "runs": len(curve.runs),
            "before": percent(before(curve)),
            "after": percent(after(curve)),
            "change": in_points(change(curve)),
            "iteration": _last_evaluated(curve.runs),
        }
        for index, curve in enumerate(curves)
    ]


def run_rows(curves: Sequence[Curve]) -> list[dict[str, str]]:
    """Every run, with the errors of its own evaluations."""
    return [
        {
            "name": run.path.name,
            "colour": colour_of(index),
            "seed": stats.MISSING if run.seed is None else str(run.seed),
            "iterations": str(run.metrics[-1]["iteration"] if run.metrics else 0),
            "evaluated": _last_evaluated([run]),
            "episodes": decimal(number(run.after() or run.before(), "episodes"), 0),
            "before": percent(stats.success(run.before())),
            "after": percent(stats.success(run.after())),
            "change": in_points(_change(run)),
        }
        for index, curve in enumerate(curves)
        for run in curve.runs
    ]


def _last_evaluated(runs: Sequence[RunData]) -> str:
    found = {str(row["iteration"]) if (row := run.after()) else stats.MISSING for run in runs}
    return ", ".join(sorted(found))


def split_rows(curve: Curve) -> list[dict[str, str]]:
    """Held-out success by split."""
    names = list(dict.fromkeys(split for run in curve.runs for split in run.splits))
    pooled = [ALL] if len(names) != 1 else []  # which would say the same again
    return [
        {
            "name": "all held-out" if split == ALL else split,
            "episodes": decimal(_episodes(curve, split), 0),
            "before": percent(before(curve, split)),
            "after": percent(after(curve, split)),
            "change": in_points(change(curve, split)),
        }
        for split in [*names, *pooled]
        if any(run.evaluations_of(split) for run in curve.runs)
    ]


def _episodes(curve: Curve, split: str) -> float | None:
    found = [number(run.after(split) or run.before(split), "episodes") for run in curve.runs]
    return next((episodes for episodes in found if episodes is not None), None)


def family_rows(curve: Curve) -> list[dict[str, str]]:
    """Held-out success by family of tasks, before and after."""
    rates = family_rates([curve])
    old, new = rates.get("before", {}), rates.get("after", {})
    missing = Estimate(None)
    return [
        {
            "name": name.replace("_", " "),
            "before": percent(old.get(name, missing)),
            "after": percent(new.get(name, missing)),
            "change": in_points(new.get(name, missing) - old.get(name, missing)),
        }
        for name in sorted({*old, *new})
    ]


def phase_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Seconds by phase, in all and in a mean iteration."""
    means = {name: seconds for name, seconds in mean_phases(runs).items() if seconds > 0}
    iterations = sum(len(phase_seconds(run)) for run in runs)
    whole = sum(means.values())
    return [
        {
            "name": name,
            "total": _short(seconds * iterations),
            "each": _short(seconds),
            "share": 100 * seconds / whole,
            "colour": PHASES[name],
        }
        for name, seconds in means.items()
    ]


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else duration(seconds)


def notes(curves: Sequence[Curve]) -> list[str]:
    """What a reader has to know to weigh the numbers."""
    runs = [run for curve in curves for run in curve.runs]
    found = [*_evaluation_notes(runs), *_end_notes(curves)]
    if len(runs) == 1:
        found += _single_notes(runs[0])
    else:
        found.append(
            "± and bands are one standard error over the runs of a curve, for a curve of one run "
            "that of its evaluation's episodes (in tables). Runs make one curve if their settings "
            "differ in nothing but seed, name, output, cache, checkpoint_interval, cluster and "
            "tracking."
        )
    missing = [
        name
        for key, name in PAPER_METRICS.items()
        if not any(number(row, key) is not None for run in runs for row in run.metrics)
    ]
    if missing:
        found.append(f"Not recorded, so not drawn: {', '.join(missing)}.")
    return found


def _evaluation_notes(runs: Sequence[RunData]) -> list[str]:
    rows = [row for run in runs if (row := run.after() or run.before())]
    if not rows:
        return ["No held-out evaluation was recorded."]
    numbers = {
        (decimal(number(row, "episodes"), 0), decimal(number(row, "temperature"))) for row in rows
    }
    found = [
        f"Held-out rates are over {episodes} episodes at temperature {temperature}."
        for episodes, temperature in sorted(numbers)
    ]
    if any(run.before() is None for run in runs):
        found.append("Without an evaluation of the warm start there is no difference to state.")
    return found


def _end_notes(curves: Sequence[Curve]) -> list[str]:
    found = []
    for curve in curves:
        for run in curve.runs:
            if run.summary is None:
                found.append(
                    f"{run.path.name} has no summary: it is still going on or was stopped early."
                )
            last = run.after()
            if last and run.metrics and last["iteration"] < run.metrics[-1]["iteration"]:
                found.append(
                    f"{run.path.name} was last evaluated after iteration {last['iteration']}: "
                    "that is what after means."
                )
        ends = {run.metrics[-1]["iteration"] if run.metrics else 0 for run in curve.runs}
        if len(ends) > 1:
            of = f" of {curve.name}" if len(curves) > 1 else ""
            found.append(
                f"The runs{of} ended at different iterations: their mean is drawn as far as "
                "all of them went."
            )
    return found


def _single_notes(run: RunData) -> list[str]:
    found = []
    difference = _change(run)
    if difference.value is not None and difference.error is not None:
        if abs(difference.value) < 2 * difference.error:
            found.append("The difference is within two standard errors: it may be chance.")
        found.append(
            "± is one standard error. That of the difference takes the two evaluations as "
            "independent; rates by family of tasks have the binomial one."
        )
    return [*found, "One run is one seed: it does not show how much seeds differ."]


def difference_rows(curves: Sequence[Curve]) -> tuple[list[str], list[dict[str, Any]]]:
    """Settings in which the curves differ, and the value of each curve."""
    configs = [compared_settings(curve.runs[0].config) for curve in curves]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [
        {"key": key, "values": [config.get(key, "not set") for config in configs]}
        for key in keys
        if len({config.get(key, "not set") for config in configs}) > 1
    ]
    return [curve.name for curve in curves], rows


def facts(run: RunData) -> list[tuple[str, object]]:
    """The summary of a finished run."""
    return [
        (key, round(value, 2) if isinstance(value, float) else value)
        for key, value in flat(run.summary or {}).items()
    ]
