"""`hgpo sweep`: run the trials of a grid on Ray Tune, each like a run of `hgpo train`."""

import contextlib
import functools
import logging
import os
import shutil
import types
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve, tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from env_wrappers.files import write_json
from hgpo_rllib.config import RunConfig, save_config
from hgpo_rllib.environments import with_absolute_paths
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.jsonl import read_jsonl
from hgpo_rllib.placement import Demand, describe, trial_demand
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.reporting.numbers import percent
from hgpo_rllib.reporting.report import write_report
from hgpo_rllib.reporting.sweep_results import results_table, write_results
from hgpo_rllib.results import ALL, load_runs, load_sweep
from hgpo_rllib.run.cluster import alive_nodes, ray_cluster
from hgpo_rllib.run.directory import RunDirectory, describe_full_disk
from hgpo_rllib.run.grid import SWEEP_FILE, Sweep, Trial
from hgpo_rllib.run.lock import locked
from hgpo_rllib.run.trainer import prepare_inputs
from hgpo_rllib.run.trial import ERROR, ITERATION, LOG, SUCCESS, RunTrainable, report, why_failed

TUNE_ENV_VARS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints tables even with verbose=0
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep the working directory, for relative paths of a config
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a trial writes a run directory instead
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # it waits for the running iterations
}


OnFinished = Callable[[], object]
"""Called in the main process after each trial that has run to completion."""


def run_sweep(sweep: Sweep, folder: Path, on_finished: OnFinished | None = None) -> bool:
    """Run the unfinished trials of the sweep in `folder`, then write the results.

    Returns whether all trials have finished. Tune pickles `on_finished`.

    Raises:
        RunStoppedError: the disk is full; the message has the command that continues the sweep.
    """
    with locked(folder):
        try:
            return _run_unfinished_trials(sweep, folder, on_finished)
        except Exception as error:
            full = describe_full_disk(error)
            if full is None or not (folder / SWEEP_FILE).is_file():
                raise
            raise RunStoppedError(f"{full}; {sweep.how_to_continue(folder)}") from error


def _run_unfinished_trials(sweep: Sweep, folder: Path, on_finished: OnFinished | None) -> bool:
    console = TrainingConsole()
    finished = finished_runs(sweep, folder)
    left = [trial for trial in sweep.trials if folder / trial.name not in finished]
    console.say(f"sweep directory: {folder}")
    console.say(f"{sweep}, {len(finished)} of them finished")
    try:
        if left:
            _run_trials(sweep, left, folder, console, on_finished)
    except ConfigError:
        raise
    except BaseException:
        _conclude(sweep, folder, console)
        raise
    return _conclude(sweep, folder, console)


def _run_trials(
    sweep: Sweep,
    trials: Sequence[Trial],
    folder: Path,
    console: TrainingConsole,
    on_finished: OnFinished | None,
) -> None:
    """Start Ray, prepare the inputs of all trials, and run as many at a time as fit."""
    os.environ.update(TUNE_ENV_VARS)
    demands = [trial_demand(trial.config.cluster, trial.config.policy_server) for trial in trials]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder / "tune", ignore_errors=True)
        with console.stage("starting Ray"):
            remedy = functools.partial(sweep.how_to_continue, folder)
            stack.enter_context(ray_cluster(trials[0].config, remedy=remedy))
        _compare_with_supply(demands, console)
        sweep.save(folder)
        prefix = f"hgpo-sweep-{uuid.uuid4().hex[:8]}"
        spaces: list[dict[str, Any]] = []
        for trial, demand in zip(trials, demands, strict=True):
            path = folder.absolute() / trial.name
            prepare_trial(trial, path, console)
            name = f"{prefix}-{len(spaces):03d}"
            spaces.append({"path": str(path), "serve_prefix": name, "bundles": demand.bundles})
        stack.callback(delete_applications, prefix)
        _tune(sweep, spaces, demands, folder, on_finished)


def _compare_with_supply(demands: Sequence[Demand], console: TrainingConsole) -> None:
    """Print the demand of the largest trial and the resources of the cluster.

    Raises:
        ConfigError: a trial does not fit the cluster.
    """
    nodes, free = alive_nodes(), ray.available_resources()
    for demand in demands:
        demand.check(nodes)
    largest = min(demands, key=lambda d: (d.fitting(nodes), -sum(d.total.values())))
    console.say(
        f"a trial needs {largest}; the cluster has {describe(nodes)}: "
        f"{largest.fitting(nodes)} at a time"
    )
    if any(free.get(name, 0) < amount for name, amount in largest.total.items()):
        console.say("other jobs use some of it: trials wait until it is free")


def prepare_trial(trial: Trial, path: Path, console: TrainingConsole) -> None:
    """Create the run directory of a trial, and its data and model.

    A directory with a checkpoint is kept; one without is created from scratch.

    Raises:
        ConfigError: another process is writing to the directory.
    """
    if RunDirectory(path).has_state():
        (path / ERROR).unlink(missing_ok=True)
        return
    config = with_absolute_paths(prepare_inputs(trial.config, console))
    with locked(path):
        pass
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    save_config(config, path / "config.yaml")


def _tune(
    sweep: Sweep,
    spaces: list[dict[str, Any]],
    demands: Sequence[Demand],
    folder: Path,
    on_finished: OnFinished | None,
) -> None:
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # errors are in the logs of trials
    configs = [trial.config for trial in sweep.trials]
    tune.Tuner(
        tune.with_resources(
            RunTrainable, lambda space: tune.PlacementGroupFactory(space["trial"]["bundles"])
        ),
        param_space={"trial": tune.grid_search(spaces)},
        tune_config=tune.TuneConfig(
            search_alg=ResourceAwareVariantGenerator(demands),
            scheduler=make_scheduler(sweep.scheduler, configs, finished_runs(sweep, folder)),
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.absolute()),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs have their own
            callbacks=[SweepCallback(len(spaces), on_finished)],
        ),
    ).fit()


class ResourceAwareVariantGenerator(BasicVariantGenerator):
    """Tune's grid search, which starts a trial only if all its processes fit the cluster.

    A trial's policy server is outside of its placement group. Tune alone would start trials on the
    CPUs that policy servers of other trials are waiting for. Nodes are counted before every trial,
    so nodes can join or leave during a sweep.
    """

    def __init__(self, demands: Sequence[Demand]) -> None:
        """Create the search for trials with one of these demands each."""
        super().__init__()
        # Most trials have the same one, and Tune asks for trials ten times a second.
        self._demands = [d for number, d in enumerate(demands) if d not in demands[:number]]

    def next_trial(self) -> TuneTrial | None:
        """See `BasicVariantGenerator`."""
        nodes = alive_nodes()
        self.max_concurrent = max(1, min(demand.fitting(nodes) for demand in self._demands))
        return super().next_trial()


def make_scheduler(
    name: str | None, configs: Sequence[RunConfig], finished: Iterable[Path]
) -> TrialScheduler:
    """Return Tune's scheduler: ``asha``, or None to run every trial to completion.

    New trials are compared with the `finished` run directories.
    """
    if name is None:
        return FIFOScheduler()
    scheduler = ASHAScheduler(
        time_attr=ITERATION,
        metric=SUCCESS,
        mode="max",
        grace_period=max(config.evaluation.interval for config in configs),
        max_t=max(config.iterations for config in configs),
        reduction_factor=2,  # half of the compared trials continue
    )
    for path in finished:
        trial: Any = types.SimpleNamespace(trial_id=path.name)
        scheduler.on_trial_add(None, trial)
        for row in read_jsonl(RunDirectory(path).evaluations):
            if row["split"] == ALL:
                scheduler.on_trial_result(None, trial, report(row))
    return scheduler


class SweepCallback(tune.Callback):
    """Callback in the sweep's main process that reports when trials start and end.

    Tune pickles it, so it cannot hold a console.
    """

    def __init__(self, total: int, on_finished: OnFinished | None = None):
        """Create the callback for `total` trials."""
        self.total = total
        self.on_finished = on_finished
        self.begun = 0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """See `tune.Callback`."""
        self.begun += 1
        log = Path(trial.config["trial"]["path"]) / LOG
        TrainingConsole().say(f"trial {self.begun}/{self.total} begins, see {log}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """See `tune.Callback`. The scheduler has stopped a run that is not finished."""
        path = Path(trial.config["trial"]["path"])
        directory = RunDirectory(path)
        stopped = not directory.is_finished()
        if stopped:
            write_json(directory.summary, {"stopped_after": trial.last_result[ITERATION]})
        write_report([path])
        if self.on_finished is not None and not stopped:
            self.on_finished()
        row = load_runs(path).changes.set_index("split").loc[ALL]
        early = f" (stopped after {row['iteration']} iterations)" if stopped else ""
        TrainingConsole().say(
            f"{path.name}: held-out success {percent(row['before'], row['before_error'])} before, "
            f"{percent(row['after'], row['after_error'])} after{early}"
        )

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """See `tune.Callback`. Delete the trial's policy server, which can block other trials."""
        delete_applications(trial.config["trial"]["serve_prefix"])
        path = Path(trial.config["trial"]["path"])
        reason = why_failed(path, trial.get_pickled_error())
        TrainingConsole().say(f"{path.name} failed: {reason}; see {path / LOG}")


def delete_applications(prefix: str) -> None:
    """Delete policy servers whose trial was killed: they outlive the process of the trial."""
    for name in serve.status().applications:
        if name.startswith(f"{prefix}-"):
            serve.delete(name)


def _conclude(sweep: Sweep, folder: Path, console: TrainingConsole) -> bool:
    """Print and write the results of finished trials; return whether all have finished."""
    finished = finished_runs(sweep, folder)
    if finished:
        results = load_sweep(folder)
        files = write_results(folder, results)
        console.console.print(results_table(results))
        console.say("results: " + ", ".join(str(file) for file in files))
        console.say(f"report: {write_report([folder])}")
    left = len(sweep.trials) - len(finished)
    if left and (folder / SWEEP_FILE).is_file():
        console.say(f"{left} trials are left; {sweep.how_to_continue(folder)}")
    return not left


def finished_runs(sweep: Sweep, folder: Path) -> list[Path]:
    """Return the run directories of the finished trials."""
    paths = [folder / trial.name for trial in sweep.trials]
    return [path for path in paths if RunDirectory(path).is_finished()]
