"""`hgpo study report`: docs/results.md and its figures, from the recorded trials."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from env_wrappers.files import write_atomically
from hgpo_rllib.agent.templates import template_environment
from hgpo_rllib.bench.fidelity import load_result
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.metrics import PANELS
from hgpo_rllib.reporting import style
from hgpo_rllib.reporting.markdown import anchor, table
from hgpo_rllib.reporting.panels import Line, Panel, draw_panels
from hgpo_rllib.studies import statistics as st
from hgpo_rllib.studies.analysis import (
    Results,
    arm_rows,
    baseline_rows,
    claim_rows,
    describe_fidelity,
    describe_power,
    diagnostic_rows,
    estimator_fidelity,
    fidelity_rows,
    size_rows,
)
from hgpo_rllib.studies.records import CURVES, FOLDER, load_records
from hgpo_rllib.studies.settings import STUDIES, load_study

PAGE = "results.md"
FIGURES = {"success.png": "success and performance profile", "training.png": "training"}
DIFFERENCES = "differences.png"
"""Figure of a study with a baseline."""
ROW = 0.2  # inches per arm
TITLES = {
    "invalid_rate": "Invalid responses (steps)",
    "inadmissible_rate": "Inadmissible actions (steps)",
    "policy_loss": "Policy loss",
}
"""Of metrics that share a panel in the reports of runs."""
TABLES = {
    "Success:": arm_rows,
    "Differences from the baseline:": baseline_rows,
    "Claims:": claim_rows,
    "[Fidelity](credit_assignment.md) and success of estimators:": fidelity_rows,
    "Diagnostics, means over iterations and seeds ([metrics](metrics.md)):": diagnostic_rows,
    "Shares of steps by the size of their group at depth k, at the last iteration:": size_rows,
}


def load_studies(docs: Path, folder: Path | None = None) -> dict[str, Results]:
    """Return the studies of a folder (default: tuned_examples/studies/) with their finished trials.

    Raises:
        ConfigError, DataError: there is no study, or a study or a record is invalid.
    """
    folder, found = folder or STUDIES, {}
    for path in sorted(folder.glob("*.yaml")):
        study, fidelity = load_study(path), None
        if (name := study.analysis.fidelity) is not None:
            fidelity = load_result(docs / FOLDER / "credit" / f"{name}.json")
        found[path.stem] = Results(study, load_records(path.stem, study, docs), fidelity)
    if not found:
        raise ConfigError(f"--studies: {folder} holds no study: give a folder of *.yaml files")
    return found


def write_report(docs: Path, folder: Path | None = None, name: str | None = None) -> list[Path]:
    """Write the page and the figures; return the written files.

    Args:
        docs: folder of results.md and results/.
        folder: see `load_studies`.
        name: the study whose figures are drawn; None: all studies with finished trials.

    Raises:
        ConfigError, DataError: there is no study `name`, or see `load_studies`.
    """
    studies = load_studies(docs, folder)
    if name is not None and name not in studies:
        raise ConfigError(
            f"no study {name} in {folder or STUDIES} (see --studies); available: "
            + ", ".join(studies)
        )
    docs.mkdir(parents=True, exist_ok=True)
    written = [write_atomically(docs / PAGE, render(studies))]
    for study, results in studies.items():
        if results.records and name in (None, study):
            for file, image in figures(results).items():
                written.append(write_atomically(docs / FOLDER / study / file, image))
    return written


def render(studies: Mapping[str, Results]) -> str:
    """Return the text of results.md, which depends on the studies and records only."""
    environment = template_environment(Path(__file__).parent)
    sections = [_section(name, results) for name, results in studies.items()]
    text = environment.get_template(f"{PAGE}.jinja").render(
        verdicts=_verdicts(studies.values()), sections=sections, folder=FOLDER
    )
    return text.rstrip() + "\n"


def _verdicts(studies: Iterable[Results]) -> str | None:
    """Return a table of the claims that have verdicts, or None if there are none."""
    rows = [
        {"study": f"[{results.study.title}](#{anchor(results.study.title)})"}
        | {key: row[key] for key in ("claim", "measure", "A − B (points)", "verdict")}
        for results in studies
        if results.has_verdicts
        for row in claim_rows(results)
    ]
    return _table(rows) if rows else None


def _section(name: str, results: Results) -> dict[str, Any]:
    made = {title: make(results) for title, make in TABLES.items()} if results.records else {}
    return {
        "name": name,
        "study": results.study,
        "facts": _facts(results),
        "tables": {title: _table(rows) for title, rows in made.items() if rows},
        "figures": figure_titles(results),
    }


def figure_titles(results: Results) -> dict[str, str]:
    """Return the titles of a study's figures, by file name."""
    if not results.records:
        return {}
    arms, baseline = results.arms, results.study.analysis.baseline
    compared = len(arms) > 1 and baseline in arms
    return FIGURES | ({DIFFERENCES: f"differences from {baseline}"} if compared else {})


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return table(list(rows[0]), [list(row.values()) for row in rows])


def _facts(results: Results) -> list[str]:
    study, records = results.study, results.records
    state = f"{study.size} trials"
    if not results.is_complete:
        state = f"incomplete: {len(records)} of {study.size} trials have finished"
    arms = f"{len(study.arms)} arm{'s' * (len(study.arms) > 1)}"
    facts = [
        f"{'No finished trial' if not records else state} ({arms}, "
        f"{len(study.seeds)} seeds, {study.iterations} iterations, run file `{study.base}`).",
    ]
    if len(study.arms) > 1:
        facts.append(describe_power(study, records))
    if records:
        sizes = {split: len(records[0].splits[split].tasks) for split in study.splits}
        tasks = ", ".join(f"{size} tasks of `{split}`" for split, size in sizes.items())
        plays = sorted({n for split in study.splits for n in records[0].splits[split].episodes})
        commits = Counter(_short_commit(r.commit or "unknown") for r in records)
        facts += [
            f"Held-out: {tasks}. Episodes per task and evaluation: {' or '.join(map(str, plays))}.",
            f"Initial models: {len({r.initial_model for r in records})}.",
            "Trials by commit: " + ", ".join(f"{c} {n}" for c, n in sorted(commits.items())) + ".",
        ]
        if (fidelity := describe_fidelity(results)) is not None:
            facts.append(fidelity)
    return facts


def _short_commit(commit: str) -> str:
    """Shorten a commit, but not the mark of uncommitted changes."""
    name, mark, _ = commit.partition("-dirty")
    return f"`{name[:12]}{mark}`"


def figures(results: Results) -> dict[str, bytes]:
    """Return the figures of a study with finished trials as PNGs, by file name."""
    with mpl.rc_context(style.STYLE):
        success = [_held_out(results), _metric(results, "success_rate"), _profile(results)]
        training = [_metric(results, name) for name in CURVES[1:]]
        drawn = {
            name: draw_panels(panels, results.detailed_arms, 2.8)
            for name, panels in zip(FIGURES, (success, training), strict=True)
        }
        if DIFFERENCES in figure_titles(results):
            drawn[DIFFERENCES] = _differences(results)
        return {name: style.png(figure) for name, figure in drawn.items() if figure is not None}


def _differences(results: Results) -> Figure:
    """Draw each arm's difference from the baseline, and its success against its fidelity."""
    baseline, known = results.study.analysis.baseline, estimator_fidelity(results)
    assert baseline is not None, "see figure_titles"
    arms = [arm for arm in results.arms if arm != baseline]
    height = 0.7 + ROW * max(len(arms), len(known))
    figure, axes = style.grid(1 + bool(known), height, columns=2)
    found = [results.difference(arm, baseline, measure="final") for arm in arms]
    value, low, high = 100 * np.array([(e.value, e.low, e.high) for e in found]).T
    axes[0].errorbar(value, range(len(arms)), xerr=[value - low, high - value], fmt="o")
    axes[0].axvline(0, color=style.GREY, linewidth=1)
    axes[0].set_yticks(range(len(arms)), arms)
    axes[0].set_ylim(len(arms) - 0.5, -0.5)  # the first arm at the top
    axes[0].set(title="Held-out success, 95 % intervals")
    axes[0].set_xlabel(f"difference from {baseline} (points)")
    if known:
        for arm, correlation, success in known:
            place = correlation, 100 * success.value
            axes[1].plot(*place, "o", color=style.BLUE)
            axes[1].annotate(arm, place, (4, 4), textcoords="offset points", fontsize=8)
        axes[1].set(title="Success and fidelity of estimators", ylabel="held-out success (%)")
        axes[1].set_xlabel("corrected correlation with the true advantage")
    return figure


def _lines(results: Results, values: Callable[[str], pd.DataFrame]) -> list[Line]:
    """Return one line per arm."""
    return [
        Line(values(arm), "", style.color_of(index), style.dash_of(index))
        for index, arm in enumerate(results.detailed_arms)
    ]


def _held_out(results: Results) -> Panel:
    iterations = results.records[0].evaluated

    def values(arm: str) -> pd.DataFrame:
        curves = results.curves(arm).values()
        found = [
            st.estimate([curve[:, place] for curve in curves]) for place in range(len(iterations))
        ]
        columns = {"mean": [e.value for e in found], "error": [e.high - e.value for e in found]}
        return pd.DataFrame(columns, iterations).fillna(0.0)

    return Panel("Held-out success, 95 % intervals", _lines(results, values), full_range=True)


def _metric(results: Results, name: str) -> Panel:
    """Mean and standard error over seeds of a metric of the iterations."""
    declared = {metric.name: panel for panel in PANELS for metric in panel.metrics}[name]

    def values(arm: str) -> pd.DataFrame:
        runs = pd.DataFrame(
            {r.seed: pd.Series(r.training[name], dtype=float) for r in results.of(arm)}
        )
        runs.index += 1
        return pd.DataFrame({"mean": runs.mean(axis=1), "error": runs.sem(axis=1).fillna(0.0)})

    title, lines = TITLES.get(name, declared.heading), _lines(results, values)
    return Panel(title, lines, full_range=declared.full_range, from_zero=declared.from_zero)


def _profile(results: Results) -> Panel:
    thresholds = np.linspace(0, 1, 101)

    def values(arm: str) -> pd.DataFrame:
        shares = st.profile(results.scores(arm, "final"), thresholds)
        return pd.DataFrame({"mean": shares, "error": 0.0}, index=100 * thresholds)

    lines = _lines(results, values)
    return Panel("Tasks with at least …", lines, full_range=True, x_label="… this success rate (%)")
