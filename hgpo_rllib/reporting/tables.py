"""The numbers of a report: rates, times, and notes on their interpretation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hgpo_rllib.reporting.numbers import MISSING, decimal, duration, percent, points
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.reporting.style import colour_of
from hgpo_rllib.results import ALL, Run, Runs
from hgpo_rllib.results.runs import SAME_EXPERIMENT, compared

PAPER_METRICS = {
    "advantage_mean": "mean advantage",
    "policy_loss": "policy loss",
    "kl": "KL",
    "clip_fraction": "clip fraction",
    "return_mean": "mean reward",
    "success_rate": "success",
}
RATES = ["before", "after", "gain"]
SUCCESS = ["before", "after", "difference"]
"""Column headings of `_success`."""


@dataclass(frozen=True)
class Table:
    """An HTML table; each row has a name, an optional experiment colour, and cells."""

    columns: Sequence[str]
    """Headings; the first is that of the names."""
    rows: Sequence[tuple[str, str, Sequence[str]]]


def rates(changes: pd.DataFrame, runs: Runs, by: str) -> pd.DataFrame:
    """Return means over the runs of an experiment grouped by `by`, with standard errors.

    A single run has its evaluations' errors.
    """
    if len(runs.members) == 1:
        return changes.set_index(by)
    groups = changes.groupby(by, sort=False)
    errors = groups[RATES].sem().add_suffix("_error")
    return pd.concat([groups["episodes"].first(), groups[RATES].mean(), errors], axis="columns")


def _pooled(runs: Runs) -> pd.Series | None:
    """Return `rates` of all splits pooled."""
    found = rates(runs.changes, runs, "split")
    return found.loc[ALL] if ALL in found.index else None


def _success(row: pd.Series | None) -> list[str]:
    """Format success before and after, and the difference."""
    if row is None:
        return [MISSING] * len(SUCCESS)
    return [
        percent(row["before"], row["before_error"]),
        percent(row["after"], row["after_error"]),
        points(row["gain"], row["gain_error"]),
    ]


def headline(runs: Runs) -> list[str] | None:
    """Return success before, after and difference, or None if the experiment was not evaluated."""
    row = _pooled(runs)
    return None if row is None or row[["before", "after"]].isna().all() else _success(row)


def size_of(run: Run) -> str:
    """Summarize the length of a run in one line."""
    seconds = run.metrics["wall_s"].iloc[-1] if len(run.metrics) else math.nan
    ended = "" if run.finished else " · not finished"
    return (
        f"{run.iterations} iterations · {decimal(run.metrics['env_steps'].sum(), 0)} environment "
        f"steps in training · {duration(seconds)}{ended}"
    )


def experiment_table(experiments: Experiments) -> Table:
    """Return a table that compares the experiments."""
    rows = []
    for index, (name, runs) in enumerate(experiments.items()):
        evaluated = ", ".join(sorted(_last_evaluated(runs).unique()))
        cells = [str(len(runs.members)), evaluated, *_success(_pooled(runs))]
        rows.append((name, colour_of(index), cells))
    return Table(["curve", "runs", "last evaluated", *SUCCESS], rows)


def run_table(experiments: Experiments) -> Table:
    """Return a table of all runs, with the errors of their evaluations."""
    rows = []
    for index, runs in enumerate(experiments.values()):
        changes = runs.changes.query("split == @ALL").set_index("run")
        evaluated = _last_evaluated(runs)
        for row, run in zip(runs.runs.itertuples(), runs.members, strict=True):
            own = changes.loc[row.run] if row.run in changes.index else None
            cells = [
                MISSING if pd.isna(row.seed) else str(row.seed),
                str(row.iterations),
                evaluated[row.run],
                MISSING if own is None else decimal(own["episodes"], 0),
                *_success(own),
            ]
            rows.append((run.path.name, colour_of(index) if len(experiments) > 1 else "", cells))
    return Table(["run", "seed", "iterations", "last evaluated", "episodes", *SUCCESS], rows)


def _last_evaluated(runs: Runs) -> pd.Series:
    """Return the iteration of each run's latest evaluation during training, as text."""
    changes = runs.changes.query("split == @ALL").set_index("run")
    return changes["iteration"].reindex(runs.runs["run"]).astype("str").fillna(MISSING)


def split_table(runs: Runs) -> Table:
    """Return a table of held-out success by split."""
    found = rates(runs.changes, runs, "split")
    names = [split for split in found.index if split != ALL]
    pooled = [ALL] if len(names) != 1 and ALL in found.index else []  # else shown twice
    rows = [
        (
            "all held-out" if split == ALL else split,
            "",
            [decimal(found.loc[split, "episodes"], 0), *_success(found.loc[split])],
        )
        for split in [*names, *pooled]
    ]
    return Table(["split", "episodes", *SUCCESS], rows)


def family_table(experiments: Experiments) -> Table:
    """Return held-out success by task family; for several experiments, only after training."""
    found = {name: family_rates(runs) for name, runs in experiments.items()}
    families = sorted({family for table in found.values() for family in table.index})
    tables = [table.reindex(families) for table in found.values()]
    several = len(tables) > 1
    rows = [
        (
            family.replace("_", " "),
            "",
            [_success(table.loc[family])[1] for table in tables]
            if several
            else _success(tables[0].loc[family]),
        )
        for family in families
    ]
    return Table(["family", *(found if several else SUCCESS)], rows)


def family_rates(runs: Runs) -> pd.DataFrame:
    """Return `rates` by task family over all splits; differences are those of the means."""
    found = rates(runs.family_changes.query("split == @ALL"), runs, "task_type")
    error = np.hypot(found["before_error"], found["after_error"])
    return found.assign(gain=found["after"] - found["before"], gain_error=error)


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


def mean_phases(runs: Runs) -> pd.Series:
    """Return mean seconds per iteration of the recorded phases, over all runs."""
    return phase_seconds(runs).dropna(axis="columns", how="all").fillna(0.0).mean()


def phase_table(experiments: Experiments) -> Table:
    """Return mean seconds per phase and iteration; for one experiment also totals and shares."""
    means = pd.DataFrame({name: mean_phases(runs) for name, runs in experiments.items()})
    means = means[(means > 0).any(axis="columns")].fillna(0.0)
    if len(experiments) > 1:
        rows = [(str(name), "", [_short(value) for value in row]) for name, row in means.iterrows()]
        return Table(["phase, mean of an iteration", *experiments], rows)
    ((name, runs),) = experiments.items()
    rows = [
        (phase, "", [_short(each * len(runs.metrics)), _short(each), f"{100 * share:.1f} %"])
        for phase, each, share in zip(
            means.index, means[name], means[name] / means[name].sum(), strict=True
        )
    ]
    return Table(["phase", "total", "per iteration", "share"], rows)


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 0.0995 else duration(seconds)


def notes(experiments: Experiments) -> list[str]:
    """Return the notes below the numbers: uncertainty and missing data."""
    every = list(experiments.values())
    members = [run for runs in every for run in runs.members]
    metrics = pd.concat([runs.metrics for runs in every])
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
            "of one run is over the episodes of its evaluation. Runs form one curve if their "
            f"settings differ only in {', '.join(SAME_EXPERIMENT)}."
        )
    else:
        found += [
            "± is one binomial standard error; for the difference, it assumes that the two "
            "evaluations are independent.",
            "One run is one seed: it does not show the variation between seeds.",
        ]
    missing = [name for key, name in PAPER_METRICS.items() if metrics[key].isna().all()]
    if missing:
        found.append(f"Not recorded, so not drawn: {', '.join(missing)}.")
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
    if changes["before"].isna().any() or len(changes) < sum(len(runs.members) for runs in every):
        found.append("A run without an evaluation before training has no difference.")
    evaluated = changes["iteration"].fillna(0).max()
    if len(changes) == 1 and 0 < evaluated < every[0].members[0].iterations:
        found.append(f'"After" is the last evaluation, after iteration {evaluated}.')
    if len(changes) == 1 and (changes["gain"].abs() < 2 * changes["gain_error"]).all():
        found.append("The difference is within two standard errors: it may be chance.")
    return found


def difference_table(experiments: Experiments) -> Table:
    """Return a table of the settings in which experiments differ, with their values."""
    firsts = pd.concat([runs.settings.head(1) for runs in experiments.values()])
    settings = firsts[compared(firsts.columns.drop("run"))].fillna("not set")
    different = settings.loc[:, settings.nunique() > 1]
    return Table(["setting", *experiments], [(key, "", list(different[key])) for key in different])


def fact_table(run: Run) -> Table:
    """Return a table of a finished run's summary."""
    facts = pd.json_normalize(run.summary or {})
    rows = [
        (str(key), "", [str(round(value, 2) if isinstance(value, float) else value)])
        for key, (value,) in facts.items()
    ]
    return Table(["", ""], rows)
