"""`hgpo bench …`: tables on the terminal, or one JSON object."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hgpo_rllib.cli import bench_training
from hgpo_rllib.cli.bench_output import JsonOption, make_table, print_json, print_table
from hgpo_rllib.config import ConfigError

app = typer.Typer(
    help="Benchmarks and studies; each prints a table, or JSON.", no_args_is_help=True
)
app.command()(bench_training.rollout)
app.command()(bench_training.learner)


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
        print_json({"context_length": SETTINGS.context_length, "results": rows})
        return
    table = make_table(
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
    print_table(table)


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
    from hgpo_rllib.bench.alfworld import EngineWorkload, bench_alfworld

    rows, crowd = bench_alfworld(EngineWorkload(data, split, genuine, generated, environments))
    if as_json:
        print_json({"comparisons": [asdict(row) for row in rows], "crowd": asdict(crowd)})
    else:
        for table in _alfworld_tables(rows, crowd):
            print_table(table)
    if any(row.differing_answers for row in rows):
        raise typer.Exit(1)


def _alfworld_tables(rows: list[Any], crowd: Any) -> list[Table]:
    answers = make_table(
        "Same games, same actions: TextWorld's engine and the fast one",
        "games|number|episodes|won|steps|differing answers|TextWorld steps/s|fast steps/s|ratio",
    )
    starts = make_table(
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
    many = make_table(
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
    from hgpo_rllib.bench.webshop import StoreWorkload, bench_webshop

    report = bench_webshop(StoreWorkload(data, recordings, products, steps, environments))
    if as_json:
        print_json(asdict(report))
    else:
        for table in _webshop_tables(report):
            print_table(table)
    if any(kind.same != kind.recorded for kind in report.agreements):
        raise typer.Exit(1)


def _webshop_tables(report: Any) -> list[Table]:
    tables = []
    if report.agreements:
        tables.append(make_table("Recordings of the original and of Lucene", "kind|recorded|same"))
        for row in report.agreements:
            tables[-1].add_row(row.kind, f"{row.recorded:,}", f"{row.same:,}")
    speed, build, service = report.speed, report.build, report.service
    heads = f"products|goals|construction|steps/s of one|MB for {speed.environments} more"
    tables.append(make_table("A store with its cache: environments in one process", heads))
    tables[-1].add_row(
        f"{speed.products:,}",
        f"{speed.goals:,}",
        f"{1000 * speed.construction_seconds:.0f} ms",
        f"{speed.steps_per_second:,.0f}",
        f"{speed.megabytes_added:.1f}",
    )
    if build and service:
        heads = "products|goals|products and index|goals|peak GB"
        tables.append(make_table("Building a large store", heads))
        tables[-1].add_row(
            f"{build.products:,}",
            f"{build.goals:,}",
            f"{build.catalogue_minutes:.1f} min",
            f"{build.goals_minutes:.1f} min",
            f"{build.peak_gigabytes:.2f}",
        )
        heads = "steps/s|new queries|median|95 of 100 below|resident GB"
        tables.append(make_table(f"Serving {service.environments} environments there", heads))
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
        print_json({"studies": [asdict(result) for result in studies]})
        return
    parts = {
        "everywhere": "all steps, as used in training",
        "levels": "steps in the hall, as used in training",
        "grouped": "steps in the hall in non-singleton groups at the deepest level, leave-one-out",
    }
    for part, title in parts.items():
        columns = "|".join(f"N={s.group_size} bias|std|rmse" for s in studies)
        table = make_table(title, f"estimate|{columns}")
        for name in getattr(studies[0], part):
            errors = [getattr(result, part)[name] for result in studies]
            cells = [f"{value:.3f}" for e in errors for value in (e.bias, e.deviation, e.rmse)]
            table.add_row(name, *cells)
        print_table(table)
    print_table(_claims_table(studies, parts))


def _claims_table(studies: list[Any], parts: dict[str, str]) -> Table:
    heads = "|".join(f"N={s.group_size} {part}" for part in ("levels", "grouped") for s in studies)
    table = make_table(
        "Proposition 4.1 in the hall: levels as used in training, and in non-singleton groups",
        f"claim|{heads}",
    )
    for claim in studies[0].claims["levels"]:
        cells = [
            "holds" if result.claims[part][claim] else "no"
            for part in ("levels", "grouped")
            for result in studies
        ]
        table.add_row(claim, *cells)
    return table
