"""Load runs as data frames."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.jsonl import RUN_EPISODES, ResultsError, Row, read_jsonl
from hgpo_rllib.results.frames import (
    EPISODES,
    EVALUATIONS,
    GROUP_SIZES,
    METRICS,
    STEPS,
    TASK_TYPES,
    TASKS,
    Columns,
    episode_frames,
    make_frame,
    read_episodes,
    read_object,
)
from hgpo_rllib.run_files import parse_yaml

CONFIG, SUMMARY = "config.yaml", "summary.json"
EPISODE_FILE = re.compile(r"iteration_(\d+)\.jsonl(\.gz)?")
ESTIMATOR = "algorithm.estimator"
SAME_EXPERIMENT = ("seed", "name", "output", "cache", "checkpoint_interval", "cluster", "tracking")
"""Settings and sections that may differ between runs of one experiment."""
LONGEST_VALUE = 24  # of a setting in an experiment's name


@dataclass(frozen=True)
class Run:
    """A run directory of `hgpo train` or of a sweep."""

    path: Path
    config: Row
    """All settings, as in config.yaml."""
    summary: Row | None
    """Content of summary.json; None until the run has finished."""
    metrics: pd.DataFrame
    """One row per training iteration."""
    group_sizes: pd.DataFrame
    """One row per iteration, depth k and group size: the share of steps in groups of that size."""
    evaluations: pd.DataFrame
    """One row per evaluation and split, with ``all`` for the pooled splits; iteration 0 is the
    evaluation before training.
    """
    task_types: pd.DataFrame
    """One row per evaluation, split and task type."""
    tasks: pd.DataFrame
    """One row per evaluation, split and held-out task."""
    episode_files: Mapping[int, Path]
    """Episode files by iteration, ascending."""

    @property
    def name(self) -> str:
        """The configured name, or the directory's name."""
        return str(self.config.get("name") or self.path.name)

    @property
    def finished(self) -> bool:
        """Whether the run has completed, or was stopped by a sweep's scheduler."""
        return self.summary is not None

    @property
    def iterations(self) -> int:
        """Number of training iterations so far."""
        return int(self.metrics["iteration"].max()) if len(self.metrics) else 0

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """One row per training episode; loaded on first access."""
        return self._recorded[0]

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step of the training episodes; loaded on first access."""
        return self._recorded[1]

    @cached_property
    def _recorded(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        rows = [
            row for file in self.episode_files.values() for row in read_episodes(file, RUN_EPISODES)
        ]
        source = self.path / "episodes"
        return episode_frames(rows, ("iteration", "group", "member"), EPISODES, STEPS, source)


class Runs:
    """Several runs, with the frames of a `Run` plus leading columns that identify the run.

    The columns are `run` (the directory's name, or its path if names collide), `experiment` and
    `seed`. Runs whose settings differ only in `SAME_EXPERIMENT` are seeds of one experiment, named
    by as few settings as distinguish the experiments.
    """

    def __init__(self, members: Sequence[Run], labels: pd.DataFrame) -> None:
        """Initialize; `labels` has one row per run with the leading columns of its frames."""
        self.members = list(members)
        self.labels = labels.reset_index(drop=True)

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run."""
        return self.labels.assign(
            iterations=[run.iterations for run in self.members],
            finished=[run.finished for run in self.members],
            path=[str(run.path) for run in self.members],
        )

    @cached_property
    def settings(self) -> pd.DataFrame:
        """One row per run, one column per dotted setting, values as text; 1.0 becomes ``1``."""
        settings = pd.DataFrame([_settings(run.config) for run in self.members])
        return pd.concat([self.labels["run"], settings], axis="columns")

    # See `Run` for these.
    metrics = cached_property(lambda self: self._joined("metrics"))
    group_sizes = cached_property(lambda self: self._joined("group_sizes"))
    evaluations = cached_property(lambda self: self._joined("evaluations"))
    task_types = cached_property(lambda self: self._joined("task_types"))
    tasks = cached_property(lambda self: self._joined("tasks"))
    episodes = cached_property(lambda self: self._joined("episodes"))
    steps = cached_property(lambda self: self._joined("steps"))

    @cached_property
    def changes(self) -> pd.DataFrame:
        """One row per run and split: success before training and in the latest evaluation."""
        return self.labels.merge(_changes(self.evaluations, ["run", "split"]), on="run")

    @cached_property
    def task_type_changes(self) -> pd.DataFrame:
        """One row per run, split and task type, with the columns of `changes`."""
        found = _changes(self.task_types, ["run", "split", "task_type"])
        return self.labels.merge(found, on="run")

    def experiments(self) -> dict[str, Runs]:
        """The runs of each experiment, ordered by its first run."""
        return {
            str(name): Runs([self.members[place] for place in part.index], part)
            for name, part in self.labels.groupby("experiment", sort=False)
        }

    def _joined(self, name: str) -> pd.DataFrame:
        frames = [getattr(run, name) for run in self.members]
        places = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
        labels = self.labels.iloc[places].reset_index(drop=True)
        return pd.concat([labels, pd.concat(frames, ignore_index=True)], axis="columns")


def load_run(path: str | Path, iterations: Iterable[int] | None = None) -> Run:
    """Load a run directory; the run may be finished, in progress, or crashed.

    A truncated line is ignored. If an iteration was trained again after a resume, the last one
    counts. Numbers that are not finite become NaN.

    Args:
        path: the directory.
        iterations: iterations to load episodes and steps of; None loads all.

    Raises:
        ResultsError: there is no run, or its files are invalid.
    """
    path = Path(path)
    config, summary = _read_config(path), path / SUMMARY
    try:
        evaluations, task_types, tasks = _evaluations(path / "evaluation.jsonl")
        metrics, group_sizes = _metrics(path / "metrics.jsonl")
    except ResultsError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise ResultsError(f"{path}: its files are not those of a run ({error})") from error
    files = {
        int(number[1]): file
        for file in sorted((path / "episodes").glob("iteration_*"))
        if (number := EPISODE_FILE.fullmatch(file.name))
    }
    wanted = files.keys() if iterations is None else set(iterations)
    return Run(
        path,
        config,
        read_object(summary) if summary.is_file() else None,
        metrics,
        group_sizes,
        evaluations,
        task_types,
        tasks,
        {iteration: files[iteration] for iteration in sorted(files) if iteration in wanted},
    )


def load_runs(
    paths: str | Path | Iterable[str | Path], iterations: Iterable[int] | None = None
) -> Runs:
    """Load several runs.

    Args:
        paths: run directories, or folders of run directories such as a sweep's, of which those
            that have recorded something are loaded. A run that is given twice is loaded once.
        iterations: see `load_run`.

    Raises:
        ResultsError: see `load_run`.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    wanted = None if iterations is None else set(iterations)
    found: dict[str, Path] = {}
    for run in (run for path in given for run in _run_directories(Path(path))):
        found.setdefault(os.path.realpath(run), run)
    members = [load_run(path, wanted) for path in found.values()]
    if not members:
        raise ResultsError("no run directory given")
    return Runs(members, make_labels(members))


def _run_directories(path: Path) -> list[Path]:
    inside = sorted(config.parent for config in path.glob(f"*/{CONFIG}"))
    if (path / CONFIG).is_file() or not inside:
        return [path]
    begun = [run for run in inside if _has_begun(run)]
    if not begun:
        raise ResultsError(f"{path}: none of its {len(inside)} runs has recorded anything yet")
    return begun


def _has_begun(run: Path) -> bool:
    files = (run / "metrics.jsonl", run / "evaluation.jsonl")
    return any(file.is_file() and file.stat().st_size > 0 for file in files)


def _read_config(path: Path) -> Row:
    if not path.is_dir():
        raise ResultsError(f"{path}: no such directory")
    file = path / CONFIG
    if not file.is_file():
        raise ResultsError(f"{path}: not a run directory (no {CONFIG} in it)")
    try:
        config = parse_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{file}: not YAML ({error})") from error
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read ({error.strerror})") from error
    if not isinstance(config, dict):
        raise ResultsError(f"{file}: not a mapping")
    return config


def _metrics(file: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows, sizes = [], []
    for row in read_jsonl(file):
        shares = row.pop("level_size_shares", None) or []
        rows.append(row)
        sizes += [
            {"iteration": row.get("iteration"), "depth": depth, "size": size, "share": share}
            for depth, level in enumerate(shares)
            for size, share in zip(SIZE_LABELS, level, strict=True)
        ]
    others = {name for row in rows for name in row} - METRICS.keys()  # such as those of each depth
    columns = METRICS | dict.fromkeys(sorted(others), "float64")
    return _newest(rows, columns, file), _newest(sizes, GROUP_SIZES, file)


def _evaluations(file: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rows = list(read_jsonl(file))
    task_types = [
        {"iteration": row.get("iteration"), "split": row.get("split"), "task_type": name, **values}
        for row in rows
        for name, values in row.pop("by_task_type", {}).items()
    ]
    names = ("task", "episodes", "successes")
    tasks = [
        {"iteration": row.get("iteration"), "split": row.get("split")}
        | dict(zip(names, counts, strict=True))
        for row in rows
        for counts in row.pop("by_task", ())
    ]
    return (
        _newest(rows, EVALUATIONS, file),
        _newest(task_types, TASK_TYPES, file),
        _newest(tasks, TASKS, file),
    )


def _newest(rows: Sequence[Row], columns: Columns, file: Path) -> pd.DataFrame:
    """Return rows by iteration, keeping the last of those with equal keys."""
    keys = [name for name, dtype in columns.items() if dtype in ("int64", "str")]
    frame = make_frame(rows, columns, file).drop_duplicates(keys, keep="last")
    return frame.sort_values("iteration", kind="stable", ignore_index=True)


def _changes(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the evaluation before training and the last one of a later iteration.

    The errors of their difference assume independence.
    """
    cells = pd.MultiIndex.from_frame(rows[by].drop_duplicates())
    before, after = (
        part.drop_duplicates(by, keep="last").set_index(by).reindex(cells)
        for part in (rows[rows["iteration"] == 0], rows[rows["iteration"] > 0])
    )
    columns = {
        "iteration": after["iteration"].astype("Int64"),
        "episodes": after["episodes"].fillna(before["episodes"]),
        "before": before["success_rate"],
        "before_error": before["standard_error"],
        "after": after["success_rate"],
        "after_error": after["standard_error"],
        "gain": after["success_rate"] - before["success_rate"],
        "gain_error": np.hypot(before["standard_error"], after["standard_error"]),
    }
    return pd.DataFrame(columns).reset_index()


def make_labels(members: Sequence[Run]) -> pd.DataFrame:
    """Return the leading columns that identify these runs."""
    names = [run.path.name for run in members]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in members]
    seeds = [seed if isinstance(seed := run.config.get("seed"), int) else None for run in members]
    return pd.DataFrame(
        {
            "run": pd.Series(names, dtype="str"),
            "experiment": pd.Series(_experiments(members), dtype="str"),
            "seed": pd.Series(seeds, dtype="Int64"),
        }
    )


def _settings(config: Row) -> dict[str, str]:
    """Return dotted settings as text; 1 and 1.0 are equal."""
    flat = pd.json_normalize(config).astype(object)
    return {
        str(key): str(int(value) if isinstance(value, float) and value.is_integer() else value)
        for key, (value,) in flat.items()
    }


def distinguishing_settings(members: Sequence[Run]) -> pd.DataFrame:
    """Return the settings that distinguish experiments, one row per run.

    Settings that some runs lack are left out: another version wrote them. A missing entry of a
    setting, such as `env.options.goals`, is ``not set``.
    """
    settings = pd.DataFrame([_settings(run.config) for run in members])
    keys = [
        key
        for key in settings
        if key.partition(".")[0] not in SAME_EXPERIMENT
        and all(_has_setting(run.config, key) for run in members)
    ]
    return settings[keys].fillna("not set")


def _has_setting(config: Row, key: str) -> bool:
    """Return whether a run has a setting, or the setting of which `key` is an entry."""
    section, _, rest = key.partition(".")
    field, values = rest.partition(".")[0], config.get(section)
    return isinstance(values, dict) and field in values if field else section in config


def _experiments(members: Sequence[Run]) -> list[str]:
    """Return each run's experiment name, from as few settings as distinguish the experiments."""
    settings = distinguishing_settings(members)
    used: list[str] = []
    distinct = 1
    for key in sorted(settings, key=lambda key: key != ESTIMATOR):
        number = len(settings[[*used, key]].drop_duplicates())
        if number > distinct:
            used.append(key)
            distinct = number
    if not used:
        return [members[0].name] * len(members)
    for longest in (LONGEST_VALUE, None):
        names = [
            " · ".join(_part(key, row[key], used, longest) for key in used)
            for row in settings.to_dict("records")
        ]
        if len(set(names)) == distinct:
            break
    return names


def _part(key: str, text: str, keys: Sequence[str], longest: int | None) -> str:
    if longest is not None and len(text) > longest:
        text = f"…{text[-longest:]}"
    if key == ESTIMATOR:
        return text
    short = key.rpartition(".")[2]
    alike = sum(other.rpartition(".")[2] == short for other in keys) > 1
    return f"{key if alike else short}={text}"
