"""`hgpo train`: prepare, start Ray, evaluate, iterate, evaluate, report."""

import contextlib
import functools
import shlex
import time
from collections.abc import Generator, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import joblib
import torch
from transformers.utils import logging as transformers_logging

from env_wrappers.files import write_json
from hgpo_rllib.advantages.diagnostics import level_sizes, size_distribution
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.jsonl import append_jsonl, read_jsonl
from hgpo_rllib.learner.data_parallel import stopped_by_learners
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.reporting.report import write_report
from hgpo_rllib.reporting.tables import split_table
from hgpo_rllib.results import load_runs
from hgpo_rllib.rollout.records import episode_records
from hgpo_rllib.run.changes import record_start
from hgpo_rllib.run.checkpoint_files import newest_intact, write_folder
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.directory import RunDirectory, describe_full_disk
from hgpo_rllib.run.live_metrics import LiveMetrics
from hgpo_rllib.run.lock import locked
from hgpo_rllib.run.metrics import evaluation_rows, iteration_metrics, scalars, selection_rate
from hgpo_rllib.run.tensorboard import TensorBoard
from hgpo_rllib.run.trackers import Trackers
from hgpo_rllib.warmstart import prepare

Rows = list[dict[str, Any]]


def train(config: RunConfig, resume: Path | None = None) -> Path:
    """Run `hgpo train` and return the run directory.

    To resume an interrupted run, `resume` is its directory, whose lock the caller holds, and
    `config` its settings.
    """
    console = TrainingConsole()
    try:
        config = prepare_inputs(config, console)
    except KeyboardInterrupt:
        console.say(
            "interrupted before the first iteration; start again: data and models that were "
            "finished are kept"
        )
        raise
    directory = RunDirectory(resume) if resume else RunDirectory.create(config)
    with contextlib.nullcontext() if resume else locked(directory.path):
        console.say(f"run directory: {directory.path}")
        console.say(
            f"estimator {config.algorithm.estimator}: groups share up to "
            f"{config.algorithm.context_length} states of history (anchor: "
            f"{config.algorithm.anchor}), prompts show {config.agent.memory_length} turns"
        )
        if (warning := decay_warning(config)) is not None:
            console.say(warning)
        try:
            record_start(directory, config, console)
        except KeyboardInterrupt:
            console.say(f"interrupted; {how_to_continue(directory)}")
            raise
        report = _run(config, directory, console, resume is not None)
    console.say(f"policy (HuggingFace format): {directory.checkpoint}")
    console.say(f"report: {report}")
    return directory.path


def decay_warning(config: RunConfig) -> str | None:
    """Return a warning if the learning rate of the last iterations is 0, or None."""
    decay = config.learner.lr_decay_iterations
    if decay is None or config.iterations <= decay:
        return None
    return (
        f"learner.lr_decay_iterations={decay}: the learning rate is 0 after iteration {decay}, so "
        f"the last {config.iterations - decay} iterations learn nothing: set it to "
        f"{config.iterations}, or to null for no decay"
    )


def _run(
    config: RunConfig, directory: RunDirectory, console: TrainingConsole, resumed: bool
) -> Path:
    """Start Ray, train, stop all started processes, and write the report, whose path is returned.

    On failure, print how to continue.
    """
    try:
        with contextlib.ExitStack() as stack:
            label = "starting Ray, the policy server (vLLM) and the learner"
            with console.stage(label), console.phase("start"):
                remedy = functools.partial(how_to_continue, directory)
                stack.enter_context(ray_cluster(config, directory.path, remedy))
                training = Training(config, directory, console)
                stack.callback(training.algorithm.stop)
            for _ in training.run(resumed):
                pass
        with console.stage("writing the report"):
            return write_report([directory.path])
    except ConfigError:
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, RunStoppedError) else describe_full_disk(error)
        if reason is not None:
            raise RunStoppedError(f"{reason}; {how_to_continue(directory)}") from error
        what = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        console.say(f"{what}; {how_to_continue(directory)}")
        raise


def prepare_inputs(config: RunConfig, console: TrainingConsole) -> RunConfig:
    """Create data and pocket model if the config has none, and return it with their paths.

    It turns off the warnings and progress bars of transformers, which `console` replaces.
    """
    # torch counts the CPUs of the machine, also in a container that may use only some.
    torch.set_num_threads(min(torch.get_num_threads(), joblib.cpu_count()))
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()

    def find_data(part: RunConfig) -> str | None:
        generator = find_environment(part.env.env_id).data_generator(part)
        if generator is None:
            return part.env.data
        with console.phase("data"), console.progress("generating data") as on_progress:
            return str(prepare.make_data(part, on_progress))

    complete = find_environment(config.env.env_id).with_data(config, find_data)
    model = config.model
    if model.model_path is None:
        path = prepare.model_path(config)
        if not path.is_dir():
            make_pocket_model(config, console)
        model = model.model_copy(update={"model_path": str(path)})
    return complete.model_copy(update={"model": model})


def make_pocket_model(config: RunConfig, console: TrainingConsole) -> None:
    """Demonstrate tasks and train the pocket model on the demonstrations."""
    with console.phase("demonstrations"), console.progress("demonstrating tasks") as on_progress:
        examples = prepare.make_demonstrations(config, on_progress)
    console.say(f"{sum(map(len, examples.values()))} demonstrated steps")
    with console.phase("cloning"), console.progress("cloning the pocket model") as on_progress:
        path = prepare.make_model_directory(config, examples, on_progress)
    console.say(f"pocket model: {path}")


class Training:
    """Training loop of one run, which also writes its files."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        console: TrainingConsole,
        serve_prefix: str | None = None,
    ):
        """Start the policy server and the learner, with a prefix of Serve's application, if any.

        The caller stops `algorithm`.
        """
        self.config = config
        self.directory = directory
        self.console = console
        self.tokenizer = load_tokenizer(str(config.model.model_path))
        self.tensorboard = TensorBoard(directory.path / "tensorboard")
        self.trackers = Trackers(config, directory.path, console.say)
        self.live = LiveMetrics(
            directory.path.name, lambda: self.algorithm.env_runner.prompts_in_flight()
        )
        settings = HGPOConfig.from_run_config(config)
        settings.serve_prefix = serve_prefix or settings.serve_prefix
        self.algorithm = settings.build_algo()

    def run(self, resumed: bool) -> Generator[Rows, None, None]:
        """Evaluate, train with evaluations and checkpoints, and evaluate at the end.

        Pauses after each evaluation and yields its rows, one per split.
        """
        with self.live, self.trackers, stopped_by_learners():
            yield from self._evaluations(resumed)

    def _evaluations(self, resumed: bool) -> Iterator[Rows]:
        if resumed:
            self._restore()
        else:
            before = self._evaluate(0)
            self._save(before)
            yield before
        start = time.monotonic()
        interval = self.config.evaluation.interval
        rows = self._evaluated(self.algorithm.iteration) if resumed else []
        while not self._finished(start):
            with self.console.phase("training"):
                iteration = self._iterate(start)
            due = interval and iteration % interval == 0 and not self._finished(start)
            rows = self._evaluate(iteration) if due else []
            if iteration % self.config.checkpoint_interval == 0 or self._is_best(rows):
                self._save(rows)
            if rows:
                yield rows
        # The time limit can pass during an evaluation.
        after = rows or self._evaluate(self.algorithm.iteration)
        self._save(after)
        write_json(self.directory.summary, {"seconds": self.console.seconds})
        table = split_table(load_runs(self.directory.path))
        self.console.summary(table.to_dict("index"))
        yield after

    def _finished(self, start: float) -> bool:
        minutes = self.config.minutes
        late = minutes is not None and time.monotonic() - start > 60 * minutes
        return late or self.algorithm.iteration >= self.config.iterations

    def _iterate(self, start: float) -> int:
        began = time.monotonic()
        self.algorithm.train()
        number, iteration = self.algorithm.iteration, self.algorithm.last_iteration
        assert iteration is not None, "train() sets it"
        row = {
            "iteration": number,
            "wall_s": time.monotonic() - start,
            "iteration_s": time.monotonic() - began,
            **iteration_metrics(iteration),
        }
        sizes = level_sizes(iteration.scored.levels)
        shares = size_distribution(sizes).tolist()
        append_jsonl(self.directory.metrics, [row | {"level_size_shares": shares}])
        split = self.config.env.train_split
        records = episode_records(iteration.scored, sizes, self.tokenizer, number, split)
        self.directory.write_episodes(number, records)
        self._log([row], number)
        self.console.iteration(row)
        return number

    def _evaluate(self, iteration: int) -> Rows:
        start = time.monotonic()
        with self.console.phase("evaluation"):
            result = self.algorithm.evaluate()
        seconds = time.monotonic() - start
        tasks = self.algorithm.held_out_tasks
        temperature = self.config.evaluation.temperature
        rows = evaluation_rows(result, tasks, iteration, temperature, seconds)
        append_jsonl(self.directory.evaluations, rows)
        self._log(rows, iteration)
        self.console.evaluation(rows)
        return rows

    def _log(self, rows: Rows, iteration: int) -> None:
        values = scalars(rows)
        self.tensorboard.log(values, iteration)
        self.live.publish(values)
        self.trackers.log(values, iteration)

    def _save(self, rows: Rows) -> None:
        """Write a checkpoint; `rows` is the evaluation of the same policy, or empty."""
        directory = self.directory
        write_folder(directory.checkpoint, lambda path: self.algorithm.save_pretrained(str(path)))
        if self._is_best(rows):  # before the state, so that a resumed run has its best policy
            directory.keep_best()
        write_folder(
            directory.state,
            lambda path: self.algorithm.save_to_path(path.absolute()),
            keep_previous=True,
        )

    def _is_best(self, rows: Rows) -> bool:
        """Whether this evaluation, which is already in the file, beats all previous ones."""
        if not rows:
            return False
        evaluations = groupby(
            read_jsonl(self.directory.evaluations), key=lambda row: row["iteration"]
        )
        rates = {iteration: selection_rate(same) for iteration, same in evaluations}
        return rates.pop(rows[0]["iteration"]) > max(rates.values(), default=-1.0)

    def _restore(self) -> None:
        state, problems = newest_intact(self.directory.state)
        if state is None:
            raise ConfigError(f"--resume: no intact checkpoint is left: {'; '.join(problems)}")
        for problem in problems:
            self.console.say(f"{problem}; resuming from the previous one")
        self.algorithm.restore_from_path(state.absolute())
        iteration = self.algorithm.iteration
        self.directory.truncate(iteration)
        self.tensorboard.purge(iteration + 1)
        if not self.directory.best.is_dir():  # the process was killed between two renames
            newest_intact(self.directory.best)
        self.console.say(f"resumed after iteration {iteration}")

    def _evaluated(self, iteration: int) -> Rows:
        """Return the rows of an evaluation; none if there was none."""
        return [r for r in read_jsonl(self.directory.evaluations) if r["iteration"] == iteration]


def how_to_continue(directory: RunDirectory) -> str:
    """Return how to continue: the command, or that the run has to be started again."""
    if directory.has_state():
        return f"continue with: hgpo train --resume {shlex.quote(str(directory.path))}"
    return "there is no checkpoint yet: start again"
