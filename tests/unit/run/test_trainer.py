"""The training loop, without Ray: evaluations, checkpoints, limits, and the choice of `best/`."""

import errno
import io
import itertools
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import SessionLog

from hgpo_rllib.config import RunConfig, load_config, save_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.jsonl import ALL, append_jsonl, read_jsonl
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run.checkpoint_files import previous
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.metrics import selection_rate
from hgpo_rllib.run.tensorboard import TensorBoard
from hgpo_rllib.run.trainer import (
    Rows,
    Training,
    decay_warning,
    how_to_continue,
)
from tests.unit.run.test_tensorboard import read_events


class FakeAlgorithm:
    """An algorithm that counts iterations; its checkpoints are files with the iteration."""

    def __init__(self, bad_update: bool = False, disk_is_full: bool = False):
        """With `disk_is_full`, saving RLlib's state fails, but not saving the policy."""
        self.iteration = 0
        self.bad_update = bad_update
        self.disk_is_full = disk_is_full

    def train(self) -> None:
        """See `HGPO`."""
        self.iteration += 1
        if self.bad_update:
            raise RunStoppedError("bad mini-batch 1 of 1 in update 1")

    def save_pretrained(self, path: str) -> None:
        """See `HGPO`."""
        Path(path).mkdir()
        (Path(path) / "iteration").write_text(str(self.iteration))

    def save_to_path(self, path: Path) -> None:
        """See `HGPO`."""
        if self.disk_is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.save_pretrained(str(path))

    def restore_from_path(self, path: Path) -> None:
        """See `HGPO`."""
        self.iteration = int((path / "iteration").read_text())


class FakeTraining(Training):
    """A training with a `FakeAlgorithm`, whose evaluations find `rates` and take `evaluation_s`."""

    evaluation_s = 0.0
    rates: Iterator[float] = itertools.repeat(0.5)

    def __init__(self, path: Path, config: RunConfig, **algorithm: bool):
        """Set the attributes that training uses, without starting Ray."""
        self.config = config
        self.directory = RunDirectory(path)
        save_config(config, path / "config.yaml")
        self.console = TrainingConsole(io.StringIO())
        self.algorithm = FakeAlgorithm(**algorithm)  # type: ignore[assignment]
        self.tensorboard = TensorBoard(path / "tensorboard")
        self.evaluated: list[int] = []

    def _iterate(self, start: float) -> int:
        self.algorithm.train()
        row = {"iteration": self.algorithm.iteration}
        append_jsonl(self.directory.metrics, [row])
        return self.algorithm.iteration

    def _evaluate(self, iteration: int) -> Rows:
        time.sleep(self.evaluation_s)
        self.evaluated.append(iteration)
        rows = [{"iteration": iteration, "split": ALL, "success_rate": next(self.rates)}]
        rows[0] |= {"standard_error": 0.1, "episodes": 4}
        append_jsonl(self.directory.evaluations, rows)
        return rows

    def saved(self) -> int:
        """Return the iteration of the last checkpoint."""
        return int((self.directory.state / "iteration").read_text())


def run_config(interval: int = 0, **settings: Any) -> RunConfig:
    return RunConfig.model_validate({"evaluation": {"interval": interval}, **settings})


def test_what_is_saved_is_from_before_the_bad_update(tmp_path: Path) -> None:
    """An error in an update propagates before a checkpoint or a line of metrics is written."""
    training = FakeTraining(tmp_path, run_config(), bad_update=True)
    with pytest.raises(RunStoppedError):
        list(training._evaluations(resumed=False))
    for folder in (training.directory.checkpoint, training.directory.state):
        assert (folder / "iteration").read_text() == "0"
    assert not training.directory.metrics.exists()


def test_the_best_policy_is_kept_before_the_state(tmp_path: Path) -> None:
    """The best policy is saved before the state, so a resumed run has it after any interruption."""
    training = FakeTraining(tmp_path, run_config(), disk_is_full=True)
    with pytest.raises(OSError, match="No space left"):
        next(training._evaluations(resumed=False))
    assert not training.directory.has_state()
    assert (training.directory.best / "iteration").read_text() == "0"


@pytest.mark.parametrize(
    ("interval", "iterations", "evaluated"),
    [(0, 4, [0, 4]), (2, 4, [0, 2, 4]), (3, 4, [0, 3, 4]), (2, 2, [0, 2])],
)
def test_evaluations(tmp_path: Path, interval: int, iterations: int, evaluated: list[int]) -> None:
    """A run evaluates before training, at every interval, and once after the last iteration."""
    training = FakeTraining(tmp_path, run_config(interval, iterations=iterations))
    assert [rows[0]["iteration"] for rows in training._evaluations(resumed=False)] == evaluated
    assert training.evaluated == evaluated
    assert training.saved() == iterations


def test_a_best_evaluation_is_a_checkpoint(tmp_path: Path) -> None:
    """The best policy is saved between two checkpoints too, and the first is the best so far."""
    training = FakeTraining(tmp_path, run_config(1, iterations=3, checkpoint_interval=50))
    training.rates = iter([0.0, 0.25, 0.0, 0.0])
    saved = []
    for _ in training._evaluations(resumed=False):
        best = int((training.directory.best / "iteration").read_text())
        saved.append((training.saved(), best))
    assert saved == [(0, 0), (1, 1), (1, 1), (3, 1)]


def test_the_time_limit(tmp_path: Path) -> None:
    """The time limit ends the run; if it passes during an evaluation, that is the last one."""
    training = FakeTraining(tmp_path, run_config(2, minutes=0.001, checkpoint_interval=50))
    training.evaluation_s = 0.08  # longer than the limit
    list(training._evaluations(resumed=False))
    assert len(training.evaluated) == len(set(training.evaluated)) > 1
    assert training.saved() == training.algorithm.iteration == training.evaluated[-1]


def test_resuming_from_the_previous_checkpoint(tmp_path: Path) -> None:
    """The previous checkpoint replaces a damaged one, and later rows are removed.

    Without an intact checkpoint, the error is one line.
    """
    config = run_config(1, iterations=3, checkpoint_interval=2)
    list(FakeTraining(tmp_path, config)._evaluations(resumed=False))
    training = FakeTraining(tmp_path, config)
    (training.directory.state / "iteration").write_text("?")
    written = [row["iteration"] for row in read_jsonl(training.directory.evaluations)]
    assert written == [0, 1, 2, 3]
    training.console = TrainingConsole(said := io.StringIO())
    training._restore()
    assert "state is damaged: iteration is not what was written; resuming from" in said.getvalue()
    assert [row["iteration"] for row in training._evaluated(0)] == [0]
    assert training.algorithm.iteration == 2
    *_, event = read_events(max((tmp_path / "tensorboard").iterdir()))
    assert (event.step, event.session_log.status) == (3, SessionLog.START)
    for file, iterations in (("metrics", [1, 2]), ("evaluations", [0, 1, 2])):
        rows = read_jsonl(getattr(training.directory, file))
        assert [row["iteration"] for row in rows] == iterations
    (training.directory.state / "iteration").write_text("?")  # formerly the previous one
    with pytest.raises(ConfigError, match="no intact checkpoint is left"):
        training._restore()


def test_resuming_with_the_previous_best(tmp_path: Path) -> None:
    """A process that is killed while it replaces `best/` leaves the previous one to a resume."""
    list(FakeTraining(tmp_path, run_config(iterations=1))._evaluations(resumed=False))
    training = FakeTraining(tmp_path, run_config(iterations=1))
    best = training.directory.best
    best.rename(previous(best))
    training._restore()
    assert (best / "iteration").read_text() == "0"


def test_the_command_that_continues(tmp_path: Path) -> None:
    """A shell reads the path of the run as one word; without a checkpoint there is no command."""
    directory = RunDirectory(tmp_path / "my run")
    assert how_to_continue(directory) == "there is no checkpoint yet: start again"
    directory.state.mkdir(parents=True)
    words = shlex.split(how_to_continue(directory).partition(": ")[2])
    assert words == ["hgpo", "train", "--resume", str(directory.path)]


def test_a_finished_run_is_not_evaluated_again(tmp_path: Path) -> None:
    config = run_config(0, iterations=2)
    list(FakeTraining(tmp_path, config)._evaluations(resumed=False))
    resumed = FakeTraining(tmp_path, config)
    (after,) = resumed._evaluations(resumed=True)
    assert (after[0]["iteration"], resumed.evaluated) == (2, [])


def evaluation(iteration: int, **rates: float) -> Rows:
    """Return the rows of an evaluation; `all` is the mean over splits of equal size."""
    rates[ALL] = sum(rates.values()) / len(rates)
    return [
        {"iteration": iteration, "split": split, "success_rate": rate}
        for split, rate in rates.items()
    ]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"dev": 0.25, "test": 1.0}, 0.25),
        ({"valid_seen": 0.5, "valid_unseen": 0.0}, 0.5),
        ({"dev_products": 0.25, "test_products": 1.0}, 0.25),
        ({"kitchens": 0.25, "halls": 0.75, "test": 0.0}, 0.5),
        ({"released_eval": 0.75}, 0.75),
        ({"test": 0.75}, 0.75),
        ({"test": 0.75, "valid_unseen": 0.25}, 0.5),
        ({"household.valid_unseen": 0.5, "crafting.test": 1.0, "crafting.dev": 0.25}, 0.25),
    ],
)
def test_the_rate_that_chooses(rates: dict[str, float], expected: float) -> None:
    """Test splits are ignored if there are other splits; otherwise all episodes count."""
    assert selection_rate(evaluation(3, **rates)) == expected


def test_a_policy_that_is_better_on_test_alone_is_not_the_best(tmp_path: Path) -> None:
    """Only `dev` decides, even if the rate over all splits is better."""
    training = FakeTraining(tmp_path, run_config())
    evaluations = [
        (evaluation(0, dev=0.5, test=0.25), True),  # the first evaluation
        (evaluation(1, dev=0.25, test=1.0), False),
        (evaluation(2, dev=0.5, test=1.0), False),  # not better than iteration 0
        (evaluation(3, dev=0.75, test=0.0), True),
    ]
    for rows, best in evaluations:
        append_jsonl(training.directory.evaluations, rows)
        assert training._is_best(rows) == best
    assert not training._is_best([])


def test_iterations_without_a_learning_rate() -> None:
    """A run that continues after the decay of its learning rate says so."""
    decay = "learner.lr_decay_iterations=40"
    assert decay_warning(load_config(None, ["iterations=100"])) is None
    assert decay_warning(load_config(None, ["iterations=40", decay])) is None
    warning = decay_warning(load_config(None, ["iterations=100", decay]))
    assert warning is not None
    assert "after iteration 40, so the last 60 iterations learn nothing" in warning
