"""The numbers of a report: rates, times, and notes on their interpretation.

Tables are frames of texts whose index is the first column.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hgpo_rllib.reporting.numbers import MISSING, decimal, duration, percent, points
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.results import ALL, Run, Runs
from hgpo_rllib.results.runs import SAME_EXPERIMENT, distinguishing_settings


def mean_rates(groups: Any) -> pd.DataFrame:
    """Return the means of success before and after training and of the gain over each group.

    `groups` are of `Runs.changes`. Columns such as ``gain_error`` are standard errors.
    """
    rates = groups[["before", "after", "gain"]]
    return rates.mean().join(rates.sem().add_suffix("_error"))


def rates(changes: pd.DataFrame, runs: Runs, by: str) -> pd.DataFrame:
    """Return means over the runs of an experiment grouped by `by`, with standard errors.

    A single run has its evaluations' errors.
    """
    if len(runs.members) == 1:
        return changes.set_index(by)
    groups = changes.groupby(by, sort=False)
    return mean_rates(groups).join(groups["episodes"].first())


def formatted_rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Format success before and after, and the difference, of each row."""
    cells = {
        "before": map(percent, rows["before"], rows["before_error"]),
        "after": map(percent, rows["after"], rows["after_error"]),
        "difference (points)": map(points, rows["gain"], rows["gain_error"]),
    }
    return pd.DataFrame({name: list(texts) for name, texts in cells.items()}, rows.index)


def size_of(run: Run) -> str:
    """Summarize the length of a run in one line."""
    clock, took = run.metrics["wall_s"], run.metrics["iteration_s"].fillna(0.0)
    resumed = clock - took < clock.shift()  # the clock starts again at 0 when a run is resumed
    seconds = clock.where(resumed, clock.diff().fillna(clock)).sum(min_count=1)
    ended = "" if run.finished else " · not finished"
    return (
        f"{run.iterations} iterations · {decimal(run.metrics['env_steps'].sum(), 0)} environment "
        f"steps in training · {duration(seconds)}{ended}"
    )


def experiment_table(experiments: Experiments) -> pd.DataFrame:
    """Return a table that compares the experiments."""
    every = experiments.values()
    pooled = [rates(runs.changes, runs, "split").reindex([ALL]) for runs in every]
    table = formatted_rates(pd.concat(pooled).set_axis(list(experiments)))
    table.insert(0, "runs", [str(len(runs.members)) for runs in every])
    return table


def run_table(experiments: Experiments) -> pd.DataFrame:
    """Return a table of all runs, with the errors of their evaluations."""
    every = experiments.values()
    runs = pd.concat([runs.runs for runs in every]).set_index("run")
    changes = pd.concat([runs.changes.query("split == @ALL") for runs in every])
    changes = changes.set_index("run").reindex(runs.index)
    cells = {
        "seed": runs["seed"].astype("str").fillna(MISSING),
        "iterations": runs["iterations"].astype("str"),
        "last evaluated": changes["iteration"].astype("str").fillna(MISSING),
        "episodes": [decimal(value, 0) for value in changes["episodes"]],
    }
    return pd.DataFrame(cells).join(formatted_rates(changes))


def split_table(runs: Runs) -> pd.DataFrame:
    """Return a table of held-out success by split."""
    found = rates(runs.changes, runs, "split")
    if len(found) == 2:
        found = found.drop(index=ALL, errors="ignore")  # else shown twice
    table = formatted_rates(found)
    table.insert(0, "episodes", [decimal(value, 0) for value in found["episodes"]])
    names = [split for split in table.index if split != ALL]
    return table.loc[[*names, *table.index.intersection([ALL])]].rename({ALL: "all held-out"})


def task_type_table(experiments: Experiments) -> pd.DataFrame:
    """Return held-out success by task type; for several experiments, only after training."""
    found = {
        name: formatted_rates(
            rates(runs.task_type_changes.query("split == @ALL"), runs, "task_type")
        )
        for name, runs in experiments.items()
    }
    if len(found) == 1:
        (table,) = found.values()
    else:
        table = pd.DataFrame({name: part["after"] for name, part in found.items()})
    return table.sort_index().fillna(MISSING).rename(lambda task_type: task_type.replace("_", " "))


def phase_seconds(runs: Runs) -> pd.DataFrame:
    """Return seconds per phase, indexed by run and iteration; NaN if not recorded.

    Rollout is the time that the learner waited, which in the synchronous schedule is all of it. An
    evaluation belongs to the iteration before it.
    """
    rows = runs.metrics.set_index(["run", "iteration"])
    held_out = runs.evaluations.query("split == @ALL").set_index(["run", "iteration"])
    known = pd.DataFrame(
        {
            "rollout": rows["rollout_wait_s"].fillna(rows["rollout_s"]),
            "advantages": rows["advantage_s"],
            "update": rows["update_s"],
            "weight sync": rows["sync_s"],
        }
    )
    rest = (rows["iteration_s"] - known.sum(axis="columns")).clip(lower=0)
    evaluation = held_out["evaluation_s"].reindex(rows.index)
    return known.assign(evaluation=evaluation, **{"everything else": rest})


def phase_table(experiments: Experiments) -> pd.DataFrame:
    """Return mean seconds per phase and iteration; for one experiment also totals and shares."""
    recorded = {
        name: phase_seconds(runs).dropna(axis="columns", how="all").fillna(0.0).mean()
        for name, runs in experiments.items()
    }
    means = pd.DataFrame(recorded).fillna(0.0)
    means = means[(means > 0).any(axis="columns")]
    if len(experiments) > 1:
        return means.map(_short)
    ((name, runs),) = experiments.items()
    each = means[name]
    return pd.DataFrame(
        {
            "total": (each * len(runs.metrics)).map(_short),
            "per iteration": each.map(_short),
            "share": (each / each.sum()).map(percent),
        }
    )


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else duration(seconds)


def notes(experiments: Experiments) -> list[str]:
    """Return the notes below the numbers: uncertainty and missing data."""
    every = list(experiments.values())
    members = [run for runs in every for run in runs.members]
    found = _evaluation_notes(every)
    found += [
        f"{run.path.name} has no summary: it is still running or was stopped early."
        for run in members
        if not run.finished
    ]
    found += [
        f"The runs of {name} ended at different iterations: their mean is drawn up to the last "
        "iteration that all of them have."
        for name, runs in experiments.items()
        if runs.runs["iterations"].nunique() > 1
    ]
    if len(members) > 1:
        found.append(
            "± and bands are one standard error over the runs of a curve. In tables, ± of a curve "
            "of one run is over the games of its evaluation. Runs form one curve if their "
            f"settings differ only in {', '.join(SAME_EXPERIMENT)}."
        )
    else:
        found += [
            "± is one standard error over games; for the difference, it assumes that the two "
            "evaluations are independent.",
            "One run is one seed: it does not show the variation between seeds.",
        ]
    return found


def _evaluation_notes(every: Sequence[Runs]) -> list[str]:
    rows = pd.concat([runs.evaluations.query("split == @ALL") for runs in every])
    if rows.empty:
        return ["No held-out evaluation was recorded."]
    newest = rows.drop_duplicates("run", keep="last")
    texts = {(decimal(row.episodes, 0), decimal(row.temperature)) for row in newest.itertuples()}
    found = [
        f"Held-out rates are over {episodes} episodes at temperature {temperature}."
        for episodes, temperature in sorted(texts)
    ]
    changes = pd.concat([runs.changes.query("split == @ALL") for runs in every])
    evaluated = changes["iteration"].fillna(0).max()
    if len(changes) == 1 and 0 < evaluated < every[0].members[0].iterations:
        found.append(f'"After" is the last evaluation, after iteration {evaluated}.')
    if len(changes) == 1 and (changes["gain"].abs() < 2 * changes["gain_error"]).all():
        found.append("The difference is within two standard errors: it may be chance.")
    return found


def difference_table(experiments: Experiments) -> pd.DataFrame:
    """Return a table of the settings in which experiments differ, with their values."""
    settings = distinguishing_settings([runs.members[0] for runs in experiments.values()])
    return settings.loc[:, settings.nunique() > 1].set_axis(list(experiments)).T
