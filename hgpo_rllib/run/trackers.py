"""Experiment trackers, Weights & Biases and MLflow, by Ray's integrations for them.

The process that trains logs, so that a trial of `hgpo sweep` is tracked as a run of `hgpo train`.
"""

import importlib.util
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from env_wrappers.files import write_atomically
from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run.grid import SWEEP_FILE

IDS_FILE = "trackers.json"
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # what to install for what is imported
STOPPED = (KeyboardInterrupt, GeneratorExit)  # by a user, or a trial by its scheduler


def check_trackers(names: Iterable[str]) -> None:
    """Raise ConfigError for a tracker whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.trackers: {name} is not installed; "
                f"run `pip install {PACKAGES[name]}`, or take it from the list"
            )


@dataclass(frozen=True)
class Tracker:
    """One run in one service."""

    run_id: str
    """Names the run in the service."""
    log: Callable[[Mapping[str, float], int], object]
    """Sends numbers of an iteration."""
    finish: Callable[[str], object]
    """Closes the run as ``FINISHED``, ``FAILED`` or ``KILLED``."""


def start_wandb(config: RunConfig, path: Path, group: str | None, run_id: str | None) -> Tracker:
    """Begin a run, or go on with that of `run_id`; local files go into the run directory."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its own crash reports
    import wandb
    from ray.air.integrations.wandb import setup_wandb

    run_id = run_id or uuid.uuid4().hex[:8]
    run = setup_wandb(
        config.model_dump(),
        rank_zero_only=False,
        trial_id=run_id,
        trial_name=path.name,
        group=group,
        project=config.tracking.project,
        dir=str(path),
        reinit="finish_previous",
        # Metrics and settings alone: no printed lines, no source code, no git differences.
        settings=wandb.Settings(console="off", disable_code=True, disable_git=True, silent=True),
    )
    # By iteration, not by W&B's own counter, which cannot go back to a checkpoint.
    run.define_metric("*", step_metric="iteration")
    return Tracker(
        run_id,
        lambda values, iteration: run.log({**values, "iteration": iteration}),
        lambda status: run.finish(exit_code=0 if status == "FINISHED" else 1),
    )


def start_mlflow(config: RunConfig, path: Path, group: str | None, run_id: str | None) -> Tracker:
    """Begin a run at $MLFLOW_TRACKING_URI, or go on with that of `run_id` and its parameters."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
    from ray.air.integrations.mlflow import setup_mlflow

    logging.getLogger("alembic").setLevel(logging.WARNING)  # a line per table of a new store
    # Training waits for a server that does not answer: a minute, and not MLflow's four.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    if run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = run_id  # MLflow takes it away again
    mlflow = setup_mlflow(
        config.model_dump() if run_id is None else None,
        rank_zero_only=False,
        experiment_name=config.tracking.project,
        create_experiment_if_not_exists=True,
        run_name=path.name,
        tags={"group": group} if group else None,
    )
    return Tracker(
        mlflow.active_run().info.run_id,
        lambda values, iteration: mlflow.log_metrics(dict(values), step=iteration),
        mlflow.end_run,
    )


TRACKERS: dict[str, Callable[[RunConfig, Path, str | None, str | None], Tracker]] = {
    "wandb": start_wandb,
    "mlflow": start_mlflow,
}


class Trackers:
    """All trackers of a run, open inside a ``with`` block.

    A tracker that fails to start is an error; one that fails later is said so and left alone: the
    run directory has all that it would have got.
    """

    def __init__(self, config: RunConfig, path: Path, say: Callable[[str], None]):
        """`path` is the run directory; `say` prints a line for the user."""
        self._config = config
        self._path = path
        self._say = say
        self._open: dict[str, Tracker] = {}

    def __enter__(self) -> Self:
        """Begin the runs, or go on with those that the run directory names.

        Raises:
            ConfigError: a tracker does not start, for instance without a key.
        """
        ids_file = self._path / IDS_FILE
        ids = json.loads(ids_file.read_text()) if ids_file.is_file() else {}
        in_sweep = (self._path.parent / SWEEP_FILE).is_file()
        group = self._path.absolute().parent.name if in_sweep else None
        for name in dict.fromkeys(self._config.tracking.trackers):
            try:
                tracker = TRACKERS[name](self._config, self._path, group, ids.get(name))
            except Exception as error:
                self._close("FAILED")
                text = f"tracking.trackers: {name} does not start: {describe(error)}"
                raise ConfigError(text) from None  # the cause may hold a password in an address
            self._open[name] = tracker
            ids[name] = tracker.run_id
            self._say(f"tracked by {name} as {tracker.run_id}")
        if self._open:
            write_atomically(ids_file, json.dumps(ids) + "\n")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the runs with the status that the block ended with."""
        if kind is None:
            self._close("FINISHED")
        else:
            self._close("KILLED" if issubclass(kind, STOPPED) else "FAILED")

    def log_iteration(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl."""
        self._log(row, row["iteration"])

    def log_evaluation(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Send rows of evaluation.jsonl, as ``evaluation/<split>/<name>``."""
        for row in rows:
            named = {f"evaluation/{row['split']}/{name}": value for name, value in row.items()}
            named.pop(f"evaluation/{row['split']}/iteration")
            self._log(named, row["iteration"])

    def _log(self, row: Mapping[str, Any], iteration: int) -> None:
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for name, tracker in list(self._open.items()):
            try:
                tracker.log(numbers, iteration)
            except Exception as error:
                del self._open[name]
                self._give_up(name, error)

    def _close(self, status: str) -> None:
        for name, tracker in self._open.items():
            try:
                tracker.finish(status)
            except Exception as error:
                self._give_up(name, error)
        self._open.clear()

    def _give_up(self, name: str, error: Exception) -> None:
        self._say(f"{name} does not answer, no more is sent to it: {describe(error)}")


def describe(error: Exception) -> str:
    """An error's message on one line, without user names and passwords of addresses."""
    return re.sub(r"(\w://)[^/\s]*@", r"\1", " ".join(str(error).split()))[:300]
