"""`hgpo study run`: run the trials of a study as a sweep, and record each when it has finished."""

import dataclasses
import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hgpo_rllib.environments import find_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.protocol import versions
from hgpo_rllib.results import load_run
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.grid import SWEEP_FILE, Sweep, open_sweep
from hgpo_rllib.run.sweep import run_sweep
from hgpo_rllib.studies.records import Record, make_record, record_path, write_record
from hgpo_rllib.studies.settings import Study, settings_hash


def study_folder(name: str, study: Study) -> Path:
    """Return the directory of the study's run directories."""
    config = study.config(next(iter(study.arms)), study.seeds[0])
    return Path(config.output) / f"study-{name}"


def is_committed(path: Path) -> bool:
    """Whether a study file is committed as it is; True if git cannot tell."""
    command = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored"]
    command += ["--", path.name]
    try:
        found = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:  # no git
        return True
    return found.returncode != 0 or not found.stdout


def plan(name: str, study: Study, folder: Path, records: Sequence[Record], resume: bool) -> Sweep:
    """Return the trials to run, with the finished ones that have a run directory in `folder`.

    `records` are those of the finished trials, which can be of another machine.

    Raises:
        ConfigError: `folder` is there and `resume` is False, or a trial was begun with other
            settings than the study has now.
    """
    sweep = study.sweep()
    recorded = {record.trial for record in records}
    if (folder / SWEEP_FILE).is_file():
        if not resume:
            raise ConfigError(f"{folder} is there already: add --resume to continue the study")
        now = {trial.name: settings_hash(trial.config) for trial in sweep.trials}
        for trial in open_sweep(folder).trials:
            path, before = folder / trial.name, settings_hash(trial.config)
            if now.get(trial.name, before) != before and path.is_dir():
                raise ConfigError(
                    f"{path} was begun with other settings than the study {name} has now: remove "
                    "it, or restore the study file and its base"
                )
    left = tuple(
        trial
        for trial in sweep.trials
        if trial.name not in recorded or RunDirectory(folder / trial.name).is_finished()
    )
    return dataclasses.replace(sweep, trials=left)


def run_study(name: str, command: str, sweep: Sweep, folder: Path, docs: Path) -> bool:
    """Run the unfinished trials in `folder` and write the records of all finished ones to `docs`.

    `command` continues the study. Returns whether all trials have finished.
    """
    sweep = dataclasses.replace(sweep, command=command)
    record = functools.partial(record_finished, name, sweep, folder, docs)
    record()  # those that were interrupted before they were recorded
    finished = not sweep.trials or run_sweep(sweep, folder, record)
    record()  # raises what went wrong in a callback, where Tune only logs it
    return finished


def record_finished(name: str, sweep: Sweep, folder: Path, docs: Path) -> None:
    """Write the records of the finished trials in `folder` that have none."""
    for trial in sweep.trials:
        path, record = folder / trial.name, record_path(docs, name, trial.name)
        if RunDirectory(path).is_finished() and not record.is_file():
            packages = find_environment(trial.config.env.env_id).packages
            found = versions(packages, asks_model=True)
            write_record(make_record(name, trial, load_run(path, []), found), docs)
