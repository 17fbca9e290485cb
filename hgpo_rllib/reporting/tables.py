"""The numbers that a report states: rates, times, and what a reader must know to weigh them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from hgpo_rllib.reporting.numbers import MISSING, decimal, duration, percent, points
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.reporting.style import colour_of
from hgpo_rllib.reporting.time_plots import PHASES, mean_phases
from hgpo_rllib.results import ALL, Run, Runs
from hgpo_rllib.results.runs import compared

PAPER_METRICS = {
    "advantage_mean": "mean advantage",
    "policy_loss": "policy loss",
    "kl": "KL",
    "clip_fraction": "clip fraction",
    "return_mean": "mean reward",
    "success_rate": "success",
}
RATES = ["before", "after", "gain"]


def rates(changes: pd.DataFrame, runs: Runs, by: str) -> pd.DataFrame:
    """Means over the runs of an experiment by `by`, with their standard errors.

    A single run has the errors of its own evaluations.
    """
    if len(runs.members) == 1:
        return changes.set_index(by)
    groups = changes.groupby(by, sort=False)
    errors = groups[RATES].sem().add_suffix("_error")
    return pd.concat([groups["episodes"].first(), groups[RATES].mean(), errors], axis="columns")


def split_rates(runs: Runs) -> pd.DataFrame:
    """`rates` by split."""
    return rates(runs.changes, runs, "split")


def family_rates(runs: Runs) -> pd.DataFrame:
    """`rates` by family of tasks, of all splits; differences are those of the means."""
    found = rates(runs.family_changes.query("split == @ALL"), runs, "task_type").sort_index()
    error = np.hypot(found["before_error"], found["after_error"])
    return found.assign(gain=found["after"] - found["before"], gain_error=error)


def _cells(row: pd.Series | None) -> dict[str, str]:
    """Success before and after, and the difference."""
    if row is None:
        return dict.fromkeys(("before", "after", "change"), MISSING)
    return {
        "before": percent(row["before"], row["before_error"]),
        "after": percent(row["after"], row["after_error"]),
        "change": points(row["gain"], row["gain_error"]),
    }


def _pooled(runs: Runs) -> pd.Series | None:
    found = split_rates(runs)
    return found.loc[ALL] if ALL in found.index else None


def headline(runs: Runs) -> dict[str, str] | None:
    """The tiles of a report on one experiment, if it was evaluated."""
    row = _pooled(runs)
    return None if row is None or row[["before", "after"]].isna().all() else _cells(row)


def size_of(run: Run) -> str:
    """How far a run went, in one line."""
    seconds = run.metrics["wall_s"].iloc[-1] if len(run.metrics) else math.nan
    ended = "" if run.finished else " · not finished"
    return (
        f"{run.iterations} iterations · {decimal(run.metrics['env_steps'].sum(), 0)} environment "
        f"steps in training · {duration(seconds)}{ended}"
    )


def experiment_rows(experiments: Experiments) -> list[dict[str, Any]]:
    """The experiments side by side."""
    return [
        {
            "name": name,
            "colour": colour_of(index),
            "runs": len(runs.members),
            "iteration": ", ".join(sorted(_last_evaluated(runs).unique())),
            **_cells(_pooled(runs)),
        }
        for index, (name, runs) in enumerate(experiments.items())
    ]


def run_rows(experiments: Experiments) -> list[dict[str, str]]:
    """Every run, with the errors of its own evaluations."""
    found = []
    for index, runs in enumerate(experiments.values()):
        changes = runs.changes.query("split == @ALL").set_index("run")
        evaluated = _last_evaluated(runs)
        for row, run in zip(runs.runs.itertuples(), runs.members, strict=True):
            own = changes.loc[row.run] if row.run in changes.index else None
            found.append(
                {
                    "name": run.path.name,
                    "colour": colour_of(index),
                    "seed": MISSING if pd.isna(row.seed) else str(row.seed),
                    "iterations": str(row.iterations),
                    "evaluated": evaluated[row.run],
                    "episodes": MISSING if own is None else decimal(own["episodes"], 0),
                    **_cells(own),
                }
            )
    return found


def _last_evaluated(runs: Runs) -> pd.Series:
    """The iteration of each run's newest evaluation after training began, as text."""
    changes = runs.changes.query("split == @ALL").set_index("run")
    return changes["iteration"].reindex(runs.runs["run"]).astype("str").fillna(MISSING)


def split_rows(runs: Runs) -> list[dict[str, str]]:
    """Held-out success by split."""
    found = split_rates(runs)
    names = [str(split) for split in found.index if split != ALL]
    pooled = [ALL] if len(names) != 1 and ALL in found.index else []  # else said twice
    return [
        {
            "name": "all held-out" if split == ALL else split,
            "episodes": decimal(found.loc[split, "episodes"], 0),
            **_cells(found.loc[split]),
        }
        for split in [*names, *pooled]
    ]


def family_rows(runs: Runs) -> list[dict[str, str]]:
    """Held-out success by family of tasks, before and after."""
    return [
        {"name": str(name).replace("_", " "), **_cells(row)}
        for name, row in family_rates(runs).iterrows()
    ]


def phase_rows(runs: Runs) -> list[dict[str, Any]]:
    """Seconds by phase, in all and in a mean iteration."""
    means = mean_phases(runs)
    return [
        {
            "name": name,
            "total": _short(means[name] * len(runs.metrics)),
            "each": _short(means[name]),
            "share": 100 * means[name] / means.sum(),
            "colour": colour,
        }
        for name, colour in PHASES.items()
        if means.get(name, 0.0) > 0
    ]


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else duration(seconds)


def notes(experiments: Experiments) -> list[str]:
    """What a reader has to know to weigh the numbers."""
    every = list(experiments.values())
    metrics = pd.concat([runs.metrics for runs in every])
    found = [*_evaluation_notes(every), *_end_notes(experiments)]
    if len(every) == len(every[0].members) == 1:
        found += _single_notes(every[0])
    else:
        found.append(
            "± and bands are one standard error over the runs of a curve, for a curve of one run "
            "that of its evaluation's episodes (in tables). Runs make one curve if their settings "
            "differ in nothing but seed, name, output, cache, checkpoint_interval, cluster and "
            "tracking."
        )
    missing = [name for key, name in PAPER_METRICS.items() if metrics[key].isna().all()]
    if missing:
        found.append(f"Not recorded, so not drawn: {', '.join(missing)}.")
    return found


def _evaluation_notes(every: list[Runs]) -> list[str]:
    rows = pd.concat([runs.evaluations.query("split == @ALL") for runs in every])
    if rows.empty:
        return ["No held-out evaluation was recorded."]
    newest = rows.drop_duplicates("run", keep="last")[["episodes", "temperature"]]
    texts = {(decimal(row.episodes, 0), decimal(row.temperature)) for row in newest.itertuples()}
    found = [
        f"Held-out rates are over {episodes} episodes at temperature {temperature}."
        for episodes, temperature in sorted(texts)
    ]
    begun = rows[rows["iteration"] == 0]["run"].nunique()
    if begun < sum(len(runs.members) for runs in every):
        found.append("Without an evaluation of the warm start there is no difference to state.")
    return found


def _end_notes(experiments: Experiments) -> list[str]:
    found = []
    for name, runs in experiments.items():
        for run in runs.members:
            if not run.finished:
                found.append(
                    f"{run.path.name} has no summary: it is still going on or was stopped early."
                )
            last = run.evaluations["iteration"].max() if len(run.evaluations) else 0
            if 0 < last < run.iterations:
                found.append(
                    f"{run.path.name} was last evaluated after iteration {last}: "
                    "that is what after means."
                )
        if runs.runs["iterations"].nunique() > 1:
            of = f" of {name}" if len(experiments) > 1 else ""
            found.append(
                f"The runs{of} ended at different iterations: their mean is drawn as far as "
                "all of them went."
            )
    return found


def _single_notes(runs: Runs) -> list[str]:
    found = []
    row = _pooled(runs)
    if row is not None and not math.isnan(row["gain_error"]):
        if abs(row["gain"]) < 2 * row["gain_error"]:
            found.append("The difference is within two standard errors: it may be chance.")
        found.append(
            "± is one standard error. That of the difference takes the two evaluations as "
            "independent; rates by family of tasks have the binomial one."
        )
    return [*found, "One run is one seed: it does not show how much seeds differ."]


def difference_rows(experiments: Experiments) -> list[dict[str, Any]]:
    """Settings in which the experiments differ, and the value of each."""
    settings = pd.concat(
        [runs.settings.drop(columns="run").head(1) for runs in experiments.values()]
    )
    settings = settings[compared(settings)].fillna("not set")
    return [
        {"key": key, "values": list(values)}
        for key, values in settings.items()
        if values.nunique() > 1
    ]


def facts(run: Run) -> list[tuple[str, object]]:
    """The summary of a finished run."""
    return [
        (str(key), round(value, 2) if isinstance(value, float) else value)
        for key, (value,) in pd.json_normalize(run.summary or {}).items()
    ]
