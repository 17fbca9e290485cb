"""Results of finished trials as small JSON files, `docs/results/STUDY/ARM-seedN.json`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from env_wrappers.files import read_json, validate_json, write_atomically
from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.jsonl import ResultsError
from hgpo_rllib.results import Run
from hgpo_rllib.run.grid import Trial
from hgpo_rllib.section import Section
from hgpo_rllib.studies.settings import ARM, Study, settings_hash

FOLDER = "results"
"""Folder of the records of all studies, in the folder of the documentation."""
CURVES = (
    "success_rate",
    "return_mean",
    "episode_length",
    "invalid_rate",
    "inadmissible_rate",
    "advantage_mean",
    "policy_loss",
    "kl",
    "clip_fraction",
    "entropy",
)
"""Metrics that are recorded for every iteration."""
DIAGNOSTICS = (
    "level_fraction_",
    "level_group_size_",
    "oracle_",
    "zero_advantage_fraction",
    "tokens_generated",
    "iteration_s",
    "rollout_s",
    "update_s",
    "advantage_s",
)
"""Beginnings of the metrics of which the mean over the iterations is recorded."""

Number = float | None


class SplitRecord(Section):
    """Evaluations of one split."""

    tasks: list[int]
    """Numbers of the tasks in the split."""
    episodes: list[int]
    """Episodes per task in each evaluation."""
    successes: list[list[int]]
    """Successful episodes: one list per evaluation, with one number per task."""


class Record(Section):
    """Content of the file of a finished trial."""

    format: Literal["hgpo-study-trial-1"] = "hgpo-study-trial-1"
    study: str
    arm: str
    seed: int
    settings_hash: str
    """See `hgpo_rllib.studies.settings.settings_hash`."""
    commit: str | None
    """Commit of the code that ran the last part of the trial."""
    versions: dict[str, str]
    """Versions of packages."""
    initial_model: str
    """Hash of the model before training."""
    tasks: dict[str, str]
    """Hash of the tasks of each split, for environments that hash their data."""
    iterations: int
    training: dict[str, list[Number]]
    """Metric by name (`CURVES`), one value per iteration."""
    evaluated: list[int]
    """Iterations of the evaluations; 0 is before training."""
    splits: dict[str, SplitRecord]
    diagnostics: dict[str, Number]
    """Mean of a metric over the iterations."""
    group_sizes: dict[str, list[float]]
    """At the last iteration, by depth: shares of steps by the size of their group (1, 2, 3-4, 5-8,
    9-16, 17-32, 33 or more)."""
    seconds: dict[str, float]
    """Seconds per phase of the last part of the trial; `training` is without evaluations."""

    @property
    def trial(self) -> str:
        """Name of its trial."""
        return f"{self.arm}-seed{self.seed}"


def make_record(study: str, trial: Trial, run: Run, versions: Mapping[str, str]) -> Record:
    """Return the record of a finished trial from its run directory.

    Raises:
        ResultsError: the run has no counts per task.
    """
    if run.tasks.empty:
        raise ResultsError(f"{run.path}: no counts per task: it was made by an older version")
    started = read_json(run.path / "started.json")
    evaluated = sorted(run.tasks["iteration"].unique().tolist())
    splits = {}
    for split, rows in run.tasks.groupby("split"):
        table = rows.pivot(index="iteration", columns="task", values=["episodes", "successes"])
        table = table.fillna(0).astype(int)
        splits[str(split)] = SplitRecord(
            tasks=table["episodes"].columns.tolist(),
            episodes=table["episodes"].max().tolist(),
            successes=table["successes"].to_numpy().tolist(),
        )
    last = run.group_sizes[run.group_sizes["iteration"] == run.iterations]
    measured = [
        name
        for name, values in run.metrics.items()
        if str(name).startswith(DIAGNOSTICS) and values.notna().any()
    ]
    return Record(
        study=study,
        arm=trial.point[ARM],
        seed=trial.config.seed,
        settings_hash=settings_hash(trial.config),
        commit=started.get("commit"),
        versions=dict(versions),
        initial_model=str(started["model"])[:16],
        tasks={split: str(found)[:16] for split, found in started["games"].items()},
        iterations=run.iterations,
        training={name: [_short(x) for x in run.metrics[name]] for name in CURVES},
        evaluated=evaluated,
        splits=splits,
        diagnostics={str(name): _short(run.metrics[name].mean()) for name in measured},
        group_sizes={
            str(depth): [_short(x) or 0.0 for x in rows.set_index("size")["share"][[*SIZE_LABELS]]]
            for depth, rows in last.groupby("depth")
        },
        seconds={
            name: round(value, 1) for name, value in (run.summary or {}).get("seconds", {}).items()
        },
    )


def _short(value: float) -> Number:
    """Round to four digits; what is not finite becomes None."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def record_path(docs: Path, study: str, trial: str) -> Path:
    """Return the path of a trial's record in the folder of the documentation."""
    return docs / FOLDER / study / f"{trial}.json"


def write_record(record: Record, docs: Path) -> Path:
    """Write the record of a trial, with one line per field."""
    path = record_path(docs, record.study, record.trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = record.model_dump(mode="json").items()
    lines = [
        f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in fields
    ]
    return write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def load_records(name: str, study: Study, docs: Path) -> list[Record]:
    """Return the records of the finished trials of a study, in the order of its trials.

    Raises:
        ConfigError: a file is of no trial of the study, or was made with other settings than the
            study has now.
        DataError: a file is not a record.
    """
    trials = {trial.name: trial for trial in study.sweep().trials}
    found = {}
    for file in sorted((docs / FOLDER / name).glob("*.json")):
        record = validate_json(TypeAdapter(Record), file.read_bytes(), str(file))
        trial = trials.get(file.stem)
        if trial is None or record.trial != file.stem:
            raise ConfigError(
                f"{file}: the study {name} has no such trial: remove the file, or restore its arm "
                "and seed in the study file"
            )
        if record.settings_hash != settings_hash(trial.config):
            raise ConfigError(
                f"{file} was made with other settings than the study {name} has now: remove it and "
                f"run the trial again, or restore the study file and its base"
            )
        found[file.stem] = record
    return [found[trial] for trial in trials if trial in found]
