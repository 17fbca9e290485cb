"""`hgpo bench …`: tables on the terminal, or one JSON object."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hgpo_rllib.config import ConfigError

app = typer.Typer(
    help="Benchmarks and studies; each prints a table, or JSON.", no_args_is_help=True
)
WIDTH = 116  # where the output is no terminal

JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


@app.command()
def advantages(
    sizes: Annotated[
        list[int] | None, typer.Option("--size", help="steps of a batch; may be repeated")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="runs of batches below 200,000 steps")] = 7,
    as_json: JsonOption = False,
) -> None:
    """Time HGPO's advantages (K = 4) against an implementation with dictionaries."""
    from hgpo_rllib.bench.advantages import SETTINGS, bench_advantages

    try:
        results = list(bench_advantages(sizes or [6_400, 10_000, 100_000, 1_000_000], repeats))
    except ValueError as error:
        raise ConfigError(f"--size: {error}") from error
    if as_json:
        rows = [asdict(result) for result in results]
        _print_json({"context_length": SETTINGS.context_length, "results": rows})
        return
    table = _table(
        f"HGPO advantages, K = {SETTINGS.context_length}, medians",
        "steps|columns to result|arrays to result|dictionaries|ratio|µs/step|peak MiB|difference",
    )
    for row in results:
        table.add_row(
            f"{row.steps:,}",
            f"{1000 * row.seconds:.1f} ms",
            f"{1000 * row.arrays_seconds:.1f} ms",
            f"{1000 * row.dictionary_seconds:.0f} ms",
            f"{row.ratio:.1f}",
            f"{1e6 * row.seconds / row.steps:.2f}",
            f"{row.peak_mib:.1f}",
            f"{row.largest_difference:.0e}",
        )
    _print(table)


@app.command()
def alfworld(
    data: Annotated[
        Path | None, typer.Option(help="ALFWorld data; without it, only generated games")
    ] = None,
    split: Annotated[
        str, typer.Option(help="of the data; valid_seen has solutions")
    ] = "valid_seen",
    genuine: Annotated[
        int, typer.Option(min=0, help="games of the data to compare, half of them kitchens")
    ] = 8,
    generated: Annotated[int, typer.Option(min=0, help="generated games to compare")] = 4,
    environments: Annotated[
        int, typer.Option("--envs", min=8, help="environments to start at once, 8 a game")
    ] = 128,
    as_json: JsonOption = False,
) -> None:
    """Compare the fast ALFWorld engine with TextWorld's own; exit code 1 where answers differ."""
    from hgpo_rllib.bench.alfworld import Plan, bench_alfworld

    rows, crowd = bench_alfworld(Plan(data, split, genuine, generated, environments))
    if as_json:
        _print_json({"comparisons": [asdict(row) for row in rows], "crowd": asdict(crowd)})
    else:
        for table in _alfworld_tables(rows, crowd):
            _print(table)
    if any(row.differing_answers for row in rows):
        raise typer.Exit(1)


def _alfworld_tables(rows: list[Any], crowd: Any) -> list[Table]:
    answers = _table(
        "Same games, same actions: TextWorld's engine and the fast one",
        "games|number|episodes|won|steps|differing answers|TextWorld steps/s|fast steps/s|ratio",
    )
    starts = _table(
        "Starting an episode, ms",
        "games|new game: TextWorld|fast, translated|fast, kept|ratio|again: TextWorld|fast|ratio",
    )
    for row in rows:
        answers.add_row(
            row.kind,
            *(f"{n:,}" for n in (row.games, row.episodes, row.wins, row.steps)),
            f"{row.differing_answers:,}",
            f"{row.genuine_steps_per_second:,.1f}",
            f"{row.steps_per_second:,.0f}",
            f"{row.step_ratio:,.0f}",
        )
        starts.add_row(
            row.kind,
            f"{1000 * row.genuine_load_seconds:,.0f}",
            f"{1000 * row.cold_load_seconds:,.0f}",
            f"{1000 * row.load_seconds:,.0f}",
            f"{row.load_ratio:,.0f}",
            f"{1000 * row.genuine_reset_seconds:,.0f}",
            f"{1000 * row.reset_seconds:.4f}",
            f"{row.reset_ratio:,.0f}",
        )
    many = _table(
        f"{crowd.environments} environments over {crowd.games} games, translations kept",
        "ready|MB each|random steps/s|MB each, at the end",
    )
    many.add_row(
        f"{crowd.ready_seconds:.1f} s",
        f"{crowd.megabytes:.2f}",
        f"{crowd.steps_per_second:,.0f}",
        f"{crowd.megabytes_after:.2f}",
    )
    for table in (answers, starts, many):
        table.caption = "CPU seconds of the process"
        table.caption_justify = "left"
    return [answers, starts, many]


@app.command()
def webshop(
    data: Annotated[
        Path | None, typer.Option(help="WebShop data; without it, a thousand generated products")
    ] = None,
    recordings: Annotated[
        Path | None, typer.Option(help="folder of recordings made with that data, to compare with")
    ] = None,
    products: Annotated[
        int, typer.Option(min=0, help="also generate, build and serve a store of so many products")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="by one environment")] = 20_000,
    environments: Annotated[
        int, typer.Option("--envs", min=1, help="environments to add in one process")
    ] = 128,
    as_json: JsonOption = False,
) -> None:
    """Measure WebShop's speed and memory; exit code 1 where it differs from recordings."""
    from hgpo_rllib.bench.webshop import Plan, bench_webshop

    report = bench_webshop(Plan(data, recordings, products, steps, environments))
    if as_json:
        _print_json(asdict(report))
    else:
        for table in _webshop_tables(report):
            _print(table)
    if any(kind.same != kind.recorded for kind in report.agreements):
        raise typer.Exit(1)


def _webshop_tables(report: Any) -> list[Table]:
    tables = []
    if report.agreements:
        tables.append(_table("Recordings of the original and of Lucene", "kind|recorded|same"))
        for row in report.agreements:
            tables[-1].add_row(row.kind, f"{row.recorded:,}", f"{row.same:,}")
    speed, build, service = report.speed, report.build, report.service
    heads = f"products|goals|construction|steps/s of one|MB for {speed.environments} more"
    tables.append(_table("A store with its cache: environments in one process", heads))
    tables[-1].add_row(
        f"{speed.products:,}",
        f"{speed.goals:,}",
        f"{1000 * speed.construction_seconds:.0f} ms",
        f"{speed.steps_per_second:,.0f}",
        f"{speed.megabytes_added:.1f}",
    )
    if build and service:
        heads = "products|goals|products and index|goals|peak GB"
        tables.append(_table("Building a large store", heads))
        tables[-1].add_row(
            f"{build.products:,}",
            f"{build.goals:,}",
            f"{build.catalogue_minutes:.1f} min",
            f"{build.goals_minutes:.1f} min",
            f"{build.peak_gigabytes:.2f}",
        )
        heads = "steps/s|new queries|median|95 of 100 below|resident GB"
        tables.append(_table(f"Serving {service.environments} environments there", heads))
        tables[-1].add_row(
            f"{service.steps_per_second:,.0f}",
            f"{service.queries:,}",
            f"{service.median_milliseconds:.1f} ms",
            f"{service.p95_milliseconds:.1f} ms",
            f"{service.resident_gigabytes:.2f}",
        )
    for table in tables[len(report.agreements) > 0 :]:
        table.caption = "CPU time of the process; imports are not counted"
        table.caption_justify = "left"
    return tables


@app.command()
def rollout(
    config: Annotated[Path, typer.Argument(help="run file: model, prompts, environment")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, in any number")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests at the same time")] = 64,
    prompts: Annotated[int, typer.Option(min=1, help="of a turn")] = 1024,
    repeats: Annotated[int, typer.Option(min=1, help="turns of each side")] = 5,
    lock_step: Annotated[
        bool, typer.Option(help="also whole episodes, against a driver in lock-step")
    ] = True,
    updates: Annotated[int, typer.Option(min=0, help="of the weights, to time")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare policy server and rollouts with vLLM alone and with lock-step; time new weights."""
    from hgpo_rllib.bench.rollout import Plan, bench_rollout
    from hgpo_rllib.bench.weights import bench_weights
    from hgpo_rllib.config import load_config
    from hgpo_rllib.reporting.console import TrainingConsole
    from hgpo_rllib.run.cluster import ray_cluster
    from hgpo_rllib.run.trainer import PhaseTimes, prepare_inputs

    run = load_config(config, overrides or [])
    console = TrainingConsole(sys.stderr)
    run = prepare_inputs(run, console, PhaseTimes())
    with ray_cluster(run):
        with console.stage("rolling out, in turns with the other sides"):
            requests, episodes = bench_rollout(Plan(run, concurrency, prompts, repeats, lock_step))
        with console.stage("updating weights"):
            weights = bench_weights(run.model, run.policy_server, updates) if updates else []
    if as_json:
        _print_json(
            {
                "requests": [asdict(row) | {"ratio": row.ratio} for row in requests],
                "episodes": [asdict(row) | {"ratio": row.ratio} for row in episodes],
                "updates": [asdict(row) for row in weights],
            }
        )
        return
    for table in _rollout_tables(requests, episodes, weights):
        _print(table)


def _rollout_tables(requests: list[Any], episodes: list[Any], updates: list[Any]) -> list[Table]:
    first = requests[0]
    served = _table(
        f"{first.prompts} prompts, {first.concurrency} at a time: vLLM alone and through Serve",
        "turn|tokens|vLLM tokens/s|Serve tokens/s|ratio|added, ms/request|latency, ms|of it engine",
    )
    for name, row in _turns(requests, "ratio"):
        served.add_row(
            name,
            f"{row.tokens:,}",
            f"{row.bare_tokens / row.bare_seconds:,.0f}",
            f"{row.tokens / row.seconds:,.0f}",
            f"{row.ratio:.2f}",
            f"{row.overhead_ms:.2f}",
            f"{1000 * row.latency_s:.0f}",
            f"{1000 * row.engine_s:.0f}",
        )
    tables = [served]
    if episodes:
        first = episodes[0]
        paces = _table(
            f"{first.episodes} episodes: members at their own pace, and in lock-step",
            "turn|steps|longest|steps/s|lock-step steps/s|ratio|request, ms|of it engine|step, ms",
        )
        for name, row in _turns(episodes, "ratio"):
            paces.add_row(
                name,
                f"{row.steps:,}",
                str(row.longest),
                f"{row.steps / row.seconds:,.0f}",
                f"{row.lock_steps / row.lock_seconds:,.0f}",
                f"{row.ratio:.2f}",
                f"{1000 * row.request_s:.0f}",
                f"{1000 * row.engine_s:.0f}",
                f"{1000 * row.env_s:.1f}",
            )
        tables.append(paces)
    if updates:
        fresh = _table("New weights", "turn|published, s|first token, s|log-probability gap")
        for name, row in _turns(updates, "first_token_seconds"):
            fresh.add_row(
                name,
                f"{row.publish_seconds:.2f}",
                f"{row.first_token_seconds:.2f}",
                f"{row.logp_gap:.0e}",
            )
        tables.append(fresh)
    return tables


def _turns(rows: list[Any], key: str) -> list[tuple[str, Any]]:
    """All of them, and again the one with the median of `key` (the lower of two)."""
    median = sorted(rows, key=lambda row: getattr(row, key))[(len(rows) - 1) // 2]
    return [*((str(i), row) for i, row in enumerate(rows, 1)), ("median", median)]


@app.command()
def learner(
    config: Annotated[Path, typer.Argument(help="run file: model, prompts, objective")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, in any number")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="of the batch")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="updates of each side")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compare the learner's update with a bare PyTorch loop on the same batch: speed, memory."""
    from hgpo_rllib.bench.learner import bench_learner
    from hgpo_rllib.config import load_config
    from hgpo_rllib.reporting.console import TrainingConsole
    from hgpo_rllib.run.trainer import PhaseTimes, prepare_inputs

    console = TrainingConsole(sys.stderr)
    run = prepare_inputs(load_config(config, overrides or []), console, PhaseTimes())
    with console.stage("updating, in turns with the bare loop"):
        result = bench_learner(run, steps, repeats)
    if as_json:
        turns = [asdict(turn) | {"ratio": turn.ratio} for turn in result.turns]
        _print_json(asdict(result) | {"turns": turns})
        return
    table = _table(
        f"One update of {result.steps} steps", "turn|tokens|bare tokens/s|learner tokens/s|ratio"
    )
    for name, row in _turns(result.turns, "ratio"):
        table.add_row(
            name,
            f"{row.tokens:,}",
            f"{row.tokens / row.bare_seconds:,.0f}",
            f"{row.tokens / row.seconds:,.0f}",
            f"{row.ratio:.2f}",
        )
    table.caption = (
        f"peak memory: bare {result.bare_peak_mib:,.0f} MiB, learner {result.peak_mib:,.0f} MiB "
        f"({result.peak_mib / result.bare_peak_mib:.2f}); padding {result.padding:.1%}; "
        f"parameters differ by {result.parameter_gap:.0e} at most"
    )
    table.caption_justify = "left"
    _print(table)


@app.command("bias-variance")
def bias_variance(
    group_sizes: Annotated[
        list[int] | None, typer.Option("--group-size", help="2 to 8; may be repeated")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Exact bias and variance of the estimators on a small task (Proposition 4.1)."""
    from hgpo_rllib.advantages.bias_variance import study

    try:
        studies = [study(size) for size in group_sizes or [2, 4, 8]]
    except ValueError as error:
        raise ConfigError(f"--group-size: {error}") from error
    if as_json:
        _print_json({"studies": [asdict(result) for result in studies]})
        return
    parts = {
        "everywhere": "all steps, as used in training",
        "levels": "steps in the hall, as used in training",
        "company": "steps in the hall with company at the deepest level, leave-one-out baselines",
    }
    for part, title in parts.items():
        columns = "|".join(f"N={s.group_size} bias|std|rmse" for s in studies)
        table = _table(title, f"estimate|{columns}")
        for name in getattr(studies[0], part):
            errors = [getattr(result, part)[name] for result in studies]
            cells = [f"{value:.3f}" for e in errors for value in (e.bias, e.deviation, e.rmse)]
            table.add_row(name, *cells)
        _print(table)
    _print(_claims_table(studies, parts))


def _claims_table(studies: list[Any], parts: dict[str, str]) -> Table:
    heads = "|".join(f"N={s.group_size} {part}" for part in ("levels", "company") for s in studies)
    table = _table(
        "Proposition 4.1 in the hall: levels as used in training, and over steps with company",
        f"claim|{heads}",
    )
    for claim in studies[0].claims["levels"]:
        cells = [
            "holds" if result.claims[part][claim] else "no"
            for part in ("levels", "company")
            for result in studies
        ]
        table.add_row(claim, *cells)
    return table


def _table(title: str, heads: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, head in enumerate(heads.split("|")):
        table.add_column(head, justify="left" if index == 0 else "right")
    return table


def _print(table: Table) -> None:
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table)


def _print_json(result: dict[str, Any]) -> None:
    import numpy as np

    machine = {"python": platform.python_version(), "numpy": np.__version__, "cpus": os.cpu_count()}
    typer.echo(json.dumps(machine | result))
