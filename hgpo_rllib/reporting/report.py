"""Write the report of one run, or of several seeds of one experiment, as a single HTML file."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hgpo_rllib.reporting import stats
from hgpo_rllib.reporting.episodes import pick_episodes
from hgpo_rllib.reporting.plots import PHASES, plot_run, plot_seeds
from hgpo_rllib.reporting.run_data import ALL, Row, RunData, RunError, load_run
from hgpo_rllib.reporting.stats import Estimate, duration, number, over_seeds, percent, points

CAPTIONS = {
    "learning_curve.png": "Success while training and on held-out games",
    "policy.png": "How far and how hard the policy was moved",
    "hierarchy.png": (
        "How often a step had others to be compared with, by depth k of shared history, and how "
        "far estimates lie from that of steps with the same whole history, over the steps that "
        "share theirs. Bars are means over the iterations; what a bar lacks to 100 % are steps "
        "without a group at that depth"
    ),
    "time.png": "Where the time went, and what computing the advantages took",
}


def write_report(run_dirs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of each run, and for several runs their comparison; return its path.

    Each run gets `<run>/report.html` and `<run>/plots/*.png`. Several runs also get
    `<out>/report.html` and `<out>/seeds.png`. `out` takes the place of the run's own
    directory when there is one run, and has to be given when there are several.
    """
    runs = [load_run(path) for path in run_dirs]
    if not runs:
        raise RunError("no run directory given")
    if len(runs) == 1:
        return _write_single(runs[0], out or runs[0].path)
    if out is None:
        raise RunError("a report on several runs needs an output directory")
    for run in runs:
        _write_single(run, run.path)
    return _write_comparison(runs, out)


def _write_single(run: RunData, folder: Path) -> Path:
    pictures = plot_run(run)
    for name, png in pictures.items():
        _write_atomically(folder / "plots" / name, png)
    page = _render(
        "report.html.jinja",
        title=run.name,
        seed=run.seed,
        **_headline(run),
        splits=_by_split(run),
        task_types=_by_task_type(run),
        pictures=[_picture(name, png) for name, png in pictures.items()],
        phases=_phases(run),
        episodes=pick_episodes(run.episodes),
        notes=_notes(run),
        facts=list(_flat(run.summary or {}).items()),
        config=run.config_text,
    )
    return _write_atomically(folder / "report.html", page)


def _write_comparison(runs: Sequence[RunData], out: Path) -> Path:
    png = plot_seeds(runs)
    _write_atomically(out / "seeds.png", png)
    before = over_seeds([_value(run.before()) for run in runs])
    after = over_seeds([_value(run.after()) for run in runs])
    change = over_seeds([_change(run).value for run in runs])
    page = _render(
        "comparison.html.jinja",
        title=f"{runs[0].name}: {len(runs)} seeds",
        count=len(runs),
        before=percent(before),
        after=percent(after),
        change=points(change),
        picture=_picture("seeds.png", png),
        seeds=[_seed_row(run) for run in runs],
        splits=_splits_over_seeds(runs),
        notes=_comparison_notes(runs),
    )
    return _write_atomically(out / "report.html", page)


def _value(row: Row | None) -> float | None:
    return number(row, "success_rate")


def _change(run: RunData, split: str = ALL) -> Estimate:
    return stats.success(run.after(split)) - stats.success(run.before(split))


def _headline(run: RunData) -> dict[str, str]:
    last = run.metrics[-1] if run.metrics else {}
    after = run.after()
    return {
        "before": percent(stats.success(run.before())),
        "after": percent(stats.success(after)),
        "change": points(_change(run)),
        "after_iteration": str(after["iteration"]) if after else stats.MISSING,
        "iterations": str(last.get("iteration", 0)),
        "env_steps": stats.decimal(number(last, "env_steps"), 0),
        "wall": duration(number(last, "wall_s")),
    }


def _by_split(run: RunData) -> list[dict[str, str]]:
    return [
        {
            "name": "all held-out" if split == ALL else split,
            "episodes": stats.decimal(number(run.after(split) or run.before(split), "episodes"), 0),
            "before": percent(stats.success(run.before(split))),
            "after": percent(stats.success(run.after(split))),
            "change": points(_change(run, split)),
        }
        for split in [*run.splits, ALL]
        if run.evaluations_of(split)
    ]


def _by_task_type(run: RunData) -> list[dict[str, str]]:
    """Success by type of task over all held-out episodes, before and after."""
    old, new = ((row or {}).get("by_task_type") or {} for row in (run.before(), run.after()))
    return [_task_type(name, old.get(name), new.get(name)) for name in sorted({*old, *new})]


def _task_type(name: str, old: Row | None, new: Row | None) -> dict[str, str]:
    before, after = (
        stats.binomial(number(row, "success_rate"), number(row, "episodes")) for row in (old, new)
    )
    return {
        "name": name.replace("_", " "),
        "episodes": stats.decimal(number(new or old, "episodes"), 0),
        "before": percent(before),
        "after": percent(after),
        "change": points(after - before),
    }


def _phases(run: RunData) -> list[dict[str, Any]]:
    """Seconds by phase over all iterations, with what the phases leave of the wall time."""
    totals = {
        label: (sum(number(row, key) or 0.0 for row in run.metrics), colour)
        for key, (label, colour) in PHASES.items()
    }
    known = sum(seconds for seconds, _ in totals.values())
    wall = number(run.metrics[-1], "wall_s") if run.metrics else None
    if wall is not None and wall > known:
        totals["everything else"] = (wall - known, "#8A8A8A")
    whole = sum(seconds for seconds, _ in totals.values())
    return [
        {
            "name": label,
            "total": duration(seconds),
            "each": duration(seconds / len(run.metrics)),
            "share": 100 * seconds / whole,
            "colour": colour,
        }
        for label, (seconds, colour) in totals.items()
        if seconds > 0
    ]


def _notes(run: RunData) -> list[str]:
    """What a reader has to know to weigh the headline."""
    notes = []
    after, before = run.after(), run.before()
    shown = after or before
    if shown is None:
        notes.append("No held-out evaluation was recorded.")
    else:
        notes.append(
            f"Held-out rates are over {stats.decimal(number(shown, 'episodes'), 0)} episodes at "
            f"temperature {stats.decimal(number(shown, 'temperature'))}; ± is one standard error."
        )
    if run.summary is None:
        notes.append("This run has no summary: it is still going on or was stopped early.")
    if before is None:
        notes.append("The warm start was not evaluated, so there is no difference to state.")
    if after and run.metrics and after["iteration"] < run.metrics[-1]["iteration"]:
        notes.append(f"After means after iteration {after['iteration']}, the last one evaluated.")
    change = _change(run)
    if change.value is not None and change.error is not None:
        notes.append(_weigh(change))
    notes.append("One run is one seed: it does not show how much seeds differ.")
    return notes


def _weigh(change: Estimate) -> str:
    basis = (
        "The error of the difference takes the two evaluations as independent; "
        "rates by task type have the binomial standard error."
    )
    if abs(change.value or 0.0) < 2 * (change.error or 0.0):
        return f"The difference is within two standard errors: it may be chance. {basis}"
    return basis


def _seed_row(run: RunData) -> dict[str, str]:
    after = run.after()
    return {
        "name": run.path.name,
        "seed": stats.MISSING if run.seed is None else str(run.seed),
        "iteration": str(after["iteration"]) if after else stats.MISSING,
        "episodes": stats.decimal(number(after or run.before(), "episodes"), 0),
        "before": percent(stats.success(run.before())),
        "after": percent(stats.success(after)),
        "change": points(_change(run)),
    }


def _splits_over_seeds(runs: Sequence[RunData]) -> list[dict[str, str]]:
    names = list(dict.fromkeys(split for run in runs for split in run.splits))
    return [
        {
            "name": "all held-out" if split == ALL else split,
            "before": percent(over_seeds([_value(run.before(split)) for run in runs])),
            "after": percent(over_seeds([_value(run.after(split)) for run in runs])),
            "change": points(over_seeds([_change(run, split).value for run in runs])),
        }
        for split in [*names, ALL]
    ]


def _comparison_notes(runs: Sequence[RunData]) -> list[str]:
    notes = [
        f"Means are over {len(runs)} runs; ± is the standard error over runs. "
        "In the rows of single runs it is that of the evaluation's episodes."
    ]
    if any(_change(run).value is None for run in runs):
        notes.append("Runs without a value are left out of the mean it would belong to.")
    if len({(run.after() or {}).get("iteration") for run in runs}) > 1:
        notes.append("The runs were last evaluated at different iterations.")
    configs = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [
        key
        for key in keys
        if key not in ("seed", "name") and len({str(config.get(key)) for config in configs}) > 1
    ]
    if differing:
        notes.append(f"The runs differ in more than the seed: {', '.join(differing)}.")
    return notes


def _flat(values: Row, prefix: str = "") -> dict[str, object]:
    """Nested sections as dotted keys."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _picture(name: str, png: bytes) -> dict[str, str]:
    data = base64.b64encode(png).decode()
    return {"source": f"data:image/png;base64,{data}", "caption": CAPTIONS.get(name, "")}


def _render(template: str, **values: object) -> bytes:
    # autoescape=True rather than by file extension: what models write must never be markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values).encode()


def _write_atomically(path: Path, data: bytes) -> Path:
    """A reader sees the old file or the whole new one, also while a run is being watched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)  # mkstemp's 0600 would keep a web server from showing it
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
