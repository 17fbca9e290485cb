"""`hgpo bench …`: tables on the terminal, or one JSON object."""

import json
import os
import platform
from dataclasses import asdict
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
