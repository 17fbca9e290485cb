"""One trial of a sweep as a Ray Tune trainable."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune
from transformers.utils import logging as transformers_logging

from env_wrappers.errors import describe_error
from hgpo_rllib.config import load_config
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.reporting.console import TrainingConsole, log_events, stamped
from hgpo_rllib.run.changes import record_start
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.lock import locked
from hgpo_rllib.run.trainer import Training

LOG = "log.txt"
"""File in the run directory with the output of the trial."""
ERROR = "error.txt"
"""File in the run directory with the reason of a failure, in one line."""
ITERATION = "iteration"
"""Key of a trial's report to Tune: training iterations completed."""
SUCCESS = "held_out_success"
"""Key of a trial's report to Tune: success rate over all splits in its latest evaluation."""


class RunTrainable(tune.Trainable):
    """Tune trainable that trains the run of a run directory, from its checkpoint if there is one.

    A Tune step consists of the iterations up to and including the next evaluation, after which a
    scheduler may stop the trial.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the policy server and the learner; see `tune.Trainable`."""
        self._path = Path(config["trial"]["path"])
        self._log = (self._path / LOG).open("a")
        self._training: Training | None = None
        self._held = contextlib.ExitStack()
        with self._logged_errors():
            self._held.enter_context(locked(self._path))
            self._held.enter_context(log_events(self._log))
            self._start(config["trial"]["serve_prefix"], TrainingConsole(self._log))

    def _start(self, serve_prefix: str, console: TrainingConsole) -> None:
        transformers_logging.set_verbosity_error()
        run = load_config(self._path / "config.yaml", [])
        directory = RunDirectory(self._path)
        record_start(directory, run, console)
        with console.stage("starting the policy server and the learner"), console.phase("start"):
            self._training = Training(run, directory, console, serve_prefix)
        self._evaluations = self._training.run(directory.has_state())

    def step(self) -> dict[str, Any]:
        """Train up to the next evaluation; see `tune.Trainable`."""
        with self._logged_errors():
            rows = next(self._evaluations)
            done = RunDirectory(self._path).is_finished()
            if done:
                next(self._evaluations, None)  # exhaust it: it was not stopped
        (held_out,) = [row for row in rows if row["split"] == ALL]
        return report(held_out) | {"done": done}

    def cleanup(self) -> None:
        """Stop what `setup` started; see `tune.Trainable`."""
        with self._log, self._held, self._logged_errors():
            if self._training is not None:
                self._evaluations.close()
                self._training.algorithm.stop()

    @contextlib.contextmanager
    def _logged_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):  # the disk may be full
                (self._path / ERROR).write_text(describe_error(error) + "\n")
                traceback.print_exc(file=self._log)
                self._log.flush()
            raise


def report(row: dict[str, Any]) -> dict[str, Any]:
    """Return the report to Tune for an evaluation, given its row over all splits."""
    return {ITERATION: row["iteration"], SUCCESS: row["success_rate"]}


def why_failed(path: Path, error: Exception | None) -> str:
    """Return why the trial of a run directory failed: the reason it wrote, or else Ray's error."""
    with contextlib.suppress(OSError):
        if written := (path / ERROR).read_text().strip():
            return written
    reason = describe_error(error) if error else "its process ended"
    with contextlib.suppress(OSError), (path / LOG).open("a") as log:
        (path / ERROR).write_text(f"{reason}\n")
        log.write(stamped(f"failed: {reason}") + "\n")
    return reason
