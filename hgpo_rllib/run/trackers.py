"""Experiment trackers Weights & Biases and MLflow, through Ray's integrations.

The training process logs to them, so trials of `hgpo sweep` are tracked like runs of `hgpo train`.
"""

import importlib.util
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from env_wrappers.errors import one_line
from env_wrappers.files import read_json, write_json
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.grid import SWEEP_FILE

IDS_FILE = "trackers.json"
PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # package to install, by module name
STOPPED = (KeyboardInterrupt, GeneratorExit)  # stopped by the user, or by a sweep's scheduler


def check_trackers(names: Iterable[str]) -> None:
    """Raise ConfigError for a tracker whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.trackers: {name} is not installed; "
                f"run `pip install {PACKAGES[name]}`, or remove it from the list"
            )


class Tracker(NamedTuple):
    """One run in one tracking service."""

    run_id: str
    """Id of the run in the service."""
    log: Callable[[Mapping[str, float], int], object]
    """Sends the numbers of an iteration."""
    finish: Callable[[str], object]
    """Closes the run as ``FINISHED``, ``FAILED`` or ``KILLED``."""


def start_wandb(config: RunConfig, path: Path, group: str | None, run_id: str | None) -> Tracker:
    """Start a run, or resume the run `run_id`. Local files are written to the run directory."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no crash reports to W&B
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
        # Send metrics and settings only: no console output, source code or git diff.
        settings=wandb.Settings(console="off", disable_code=True, disable_git=True, silent=True),
    )
    # Use the iteration as the step: W&B's own counter cannot go back to a checkpoint.
    run.define_metric("*", step_metric="iteration")
    return Tracker(
        run_id,
        lambda values, iteration: run.log({**values, "iteration": iteration}),
        lambda status: run.finish(exit_code=0 if status == "FINISHED" else 1),
    )


def start_mlflow(config: RunConfig, path: Path, group: str | None, run_id: str | None) -> Tracker:
    """Start a run at $MLFLOW_TRACKING_URI, or resume the run `run_id`, which has its parameters."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import
    from ray.air.integrations.mlflow import setup_mlflow

    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every table of a new store
    # Training blocks while MLflow retries: for one minute instead of the default four.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    if run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = run_id  # MLflow removes it
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


TRACKERS = {"wandb": start_wandb, "mlflow": start_mlflow}


class Trackers:
    """All trackers of a run, open inside a ``with`` block.

    A tracker that fails to start raises an error. One that fails later is reported and no longer
    used, as the run directory holds the same data.
    """

    def __init__(self, config: RunConfig, path: Path, say: Callable[[str], None]):
        """Create the trackers of the run directory `path`; `say` prints a line for the user."""
        self._config = config
        self._path = path
        self._say = say
        self._open: dict[str, Tracker] = {}

    def __enter__(self) -> Self:
        """Start the runs, or resume those recorded in the run directory.

        Raises:
            ConfigError: a tracker does not start, for example without a key.
        """
        ids_file = self._path / IDS_FILE
        ids = read_json(ids_file) if ids_file.is_file() else {}
        in_sweep = (self._path.parent / SWEEP_FILE).is_file()
        group = self._path.absolute().parent.name if in_sweep else None
        for name in dict.fromkeys(self._config.tracking.trackers):
            try:
                tracker = TRACKERS[name](self._config, self._path, group, ids.get(name))
            except Exception as error:
                self._close("FAILED")
                text = f"tracking.trackers: {name} does not start: {without_credentials(error)}"
                raise ConfigError(text) from None  # the cause may hold a password in an address
            self._open[name] = tracker
            ids[name] = tracker.run_id
            self._say(f"tracked by {name} as {tracker.run_id}")
        if self._open:
            write_json(ids_file, ids)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the runs with the status of the block."""
        stopped = kind is not None and issubclass(kind, STOPPED)
        self._close("KILLED" if stopped else "FAILED" if kind else "FINISHED")

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        """Send numbers by name."""
        self._call(lambda tracker: tracker.log(values, iteration))

    def _close(self, status: str) -> None:
        self._call(lambda tracker: tracker.finish(status))

    def _call(self, call: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._open[name]
                self._say(f"{name} failed and is not used any more: {without_credentials(error)}")


def without_credentials(error: Exception) -> str:
    """Return an error's message on one line, without user names and passwords in URLs."""
    return one_line(re.sub(r"(\w://)[^/\s]*@", r"\1", str(error)))
