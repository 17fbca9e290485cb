"""`hgpo bench …`: benchmarks that print tables, or one JSON object."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from env_wrappers.files import write_atomically
from hgpo_rllib.cli.common import JsonOption, Overrides, RunFile, progress, show, with_median
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.reporting.console import TrainingConsole

REPEATS = 5  # turns per implementation of rollouts, and weight updates

app = typer.Typer(help="Benchmarks that print tables or JSON.", no_args_is_help=True)


@app.command()
def advantages(
    sizes: Annotated[
        list[int] | None, typer.Option("--size", help="steps in a batch; can be repeated")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the speed of HGPO's advantages (K = 4) with a dictionary-based implementation."""
    from hgpo_rllib.bench.advantages import bench_advantages

    rows = bench_advantages(sizes or [6_400, 10_000, 100_000, 1_000_000])
    show({"advantages": rows}, as_json)


@app.command()
def alfworld(
    data: Annotated[
        Path | None, typer.Option(help="ALFWorld data (default: only generated games)")
    ] = None,
    official: Annotated[
        int, typer.Option(min=0, help="number of games of the data's valid_seen to compare")
    ] = 8,
    generated: Annotated[int, typer.Option(min=0, help="number of generated games to compare")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Compare the fast ALFWorld engine with TextWorld's; exit code 1 if any answers differ."""
    from hgpo_rllib.bench.alfworld import bench_alfworld

    tables = bench_alfworld(data, "valid_seen", official, generated)
    show(tables, as_json)
    if any(row["differing_answers"] for row in tables["steps"]):
        raise typer.Exit(1)


@app.command()
def webshop(
    data: Annotated[
        Path | None, typer.Option(help="WebShop data (default: generated products)")
    ] = None,
    products: Annotated[
        int,
        typer.Option(min=1, help="number of generated products (without --data), up to millions"),
    ] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Measure speed and memory of a WebShop store."""
    from hgpo_rllib.bench.webshop import bench_webshop

    show(bench_webshop(data, products, steps=20_000, environments=128), as_json)


@app.command()
def rollout(
    config: RunFile,
    overrides: Overrides = None,
    concurrency: Annotated[int, typer.Option(min=1, help="number of concurrent requests")] = 64,
    prompts: Annotated[int, typer.Option(min=1, help="number of prompts per turn")] = 1024,
    lock_step: Annotated[
        bool, typer.Option(help="also compare whole episodes with a lock-step driver")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Compare policy server and rollouts with plain vLLM and lock-step; time weight updates."""
    from hgpo_rllib.bench.rollout import bench_rollout, bench_weights, check
    from hgpo_rllib.run.cluster import ray_cluster
    from hgpo_rllib.run.inputs import check_engine

    run, console = _prepare(config, overrides)
    run = run.without_learners()
    check_engine(run.policy_server)
    check(run.policy_server)
    with ray_cluster(run):
        with console.stage("rolling out, alternating with the other implementations"):
            tables = bench_rollout(run, concurrency, prompts, REPEATS, lock_step)
        tables = {name: with_median(rows, "ratio") for name, rows in tables.items()}
        with console.stage("updating weights"):
            rows = bench_weights(run.model, run.policy_server, REPEATS)
        tables["new_weights"] = with_median(rows, "first_token_s")
    show(tables, as_json)


@app.command()
def learner(
    config: RunFile,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="steps in the batch")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="number of updates per implementation")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare speed and memory of the learner's update with a plain PyTorch loop."""
    from hgpo_rllib.bench.learner import bench_learner

    run, console = _prepare(config, overrides)
    with console.stage("updating, alternating with the plain loop"):
        tables = bench_learner(run, steps, repeats)
    show(tables | {"updates": with_median(tables["updates"], "ratio")}, as_json)


@app.command()
def scale(
    run: Annotated[Path, typer.Argument(help="run directory whose responses are replayed")],
    overrides: Overrides = None,
    episodes: Annotated[
        list[int] | None,
        typer.Option(min=2, help="number of concurrent episodes; can be repeated"),
    ] = None,
    runners: Annotated[
        list[int] | None,
        typer.Option(min=0, help="number of env runner processes, 0 for none; can be repeated"),
    ] = None,
    steps: Annotated[
        list[int] | None,
        typer.Option(min=1, help="steps in a batch of the learner; can be repeated"),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="path of a figure of the growth")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure rollouts, schedules and the learner's input, with a run's responses and latencies."""
    from hgpo_rllib.bench import scale
    from hgpo_rllib.results import load_run
    from hgpo_rllib.run.cluster import ray_cluster

    _check_folder(figure)
    recorded = load_run(run)
    if recorded.steps.empty:
        raise ConfigError(f"{run}: no recorded episodes to replay: give a run that has trained")
    config = load_config(run / "config.yaml", overrides or []).without_learners()
    console = TrainingConsole(sys.stderr)
    with ray_cluster(config), console.stage("replaying the run's responses"):
        tables = scale.bench_scale(
            recorded,
            config,
            episodes or [64, 512, 4096],
            runners or [0, 1, 2],
            steps or [10_000, 100_000, 1_000_000],
            console.say,
        )
    show(tables, as_json)
    if figure is not None:
        write_atomically(figure, scale.figure(tables["rollouts"]))


@app.command()
def publish(
    sizes: Annotated[
        list[float] | None,
        typer.Option("--gb", min=0.01, help="size of the weights in GB; can be repeated"),
    ] = None,
    stores: Annotated[
        list[int] | None,
        typer.Option(min=1, help="number of object stores; can be repeated"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time how weights get from the learner to the object stores of Ray nodes on this machine."""
    from hgpo_rllib.bench.publishing import bench_publishing

    if not all(map(math.isfinite, sizes or [])):
        raise ConfigError("--gb: give finite numbers")
    console = TrainingConsole(sys.stderr)
    with console.stage("publishing weights"):
        rows = bench_publishing(sizes or [0.5, 1, 3, 6, 15], stores or [1, 2, 4], repeats=3)
    if not rows:
        raise ConfigError("--gb: no size fits the free memory of this machine: give a smaller one")
    show({"publishing": rows}, as_json)


@app.command("bias-variance")
def bias_variance(
    group_sizes: Annotated[
        list[int] | None, typer.Option("--group-size", help="group size, 2 to 8; can be repeated")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the exact bias and variance of the estimators on a small task (Proposition 4.1)."""
    from hgpo_rllib.bench.bias_variance import bench_bias_variance

    show(bench_bias_variance(group_sizes or [2, 4, 8]), as_json)


@app.command()
def credit(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|RUN_FILE|RESULT",
            help="run directory, run file, or result.json of this command to show again",
        ),
    ],
    overrides: Overrides = None,
    groups: Annotated[int | None, typer.Option(min=2, help="groups to play (default: 48)")] = None,
    steps: Annotated[
        int | None, typer.Option(min=2, help="steps to sample from them (default: 240)")
    ] = None,
    branches: Annotated[
        int | None,
        typer.Option(min=2, help="branches per value: Q of a response, V of a state (default: 32)"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="output directory, in which a stopped command continues"),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="path of the figure (default: in the output directory)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the estimators' advantages with true ones, measured by playing branches."""
    from hgpo_rllib.bench import fidelity
    from hgpo_rllib.bench.credit import Plan, bench_credit
    from hgpo_rllib.run.inputs import check_engine

    _check_folder(figure)
    if source.suffix == ".json":
        if overrides or output or groups or steps or branches:
            raise ConfigError(
                f"{source} is only shown again: leave out all but --figure and --json"
            )
        result = fidelity.load_result(source)
    else:
        run, _ = _prepare(source, overrides)
        check_engine(run.policy_server)
        plan = Plan(groups or 48, steps or 240, branches or 32)
        with progress("playing branches", "repeat the command to continue") as advance:
            folder, result = bench_credit(run, plan, output, advance)
        figure = figure or folder / "credit.png"
    tables = fidelity.tables(result)
    show(tables, as_json)
    if figure is not None:
        write_atomically(figure, fidelity.figure(tables))


def _check_folder(file: Path | None) -> None:
    """Raise ConfigError if the folder of a figure is missing, before anything is measured."""
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"--figure: {file.parent} is not a directory: create it")
    if file is not None and file.is_dir():
        raise ConfigError(f"--figure: {file} is a directory: give the path of a file")


def _prepare(source: Path, overrides: list[str] | None) -> tuple[RunConfig, TrainingConsole]:
    """Return settings whose data and model exist, and a console on standard error.

    `source` is a run file, or a run directory: then the model is its checkpoint.
    """
    from hgpo_rllib.run.checkpoint import load_policy_config
    from hgpo_rllib.run.inputs import check_files
    from hgpo_rllib.run.trainer import prepare_inputs

    given = overrides or []
    config = (
        load_policy_config(str(source), given) if source.is_dir() else load_config(source, given)
    )
    check_files(config.without_learners(), look_up=True)  # benchmarks have no gateway either
    console = TrainingConsole(sys.stderr)
    return prepare_inputs(config, console), console
