"""How benchmarks print: tables on the terminal, or one JSON object."""

import json
import os
import platform
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

WIDTH = 116  # where the output is no terminal

JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def make_table(title: str, heads: str) -> Table:
    """Of columns named in `heads`, with bars between; the first is flush left."""
    table = Table(title=title, title_justify="left")
    for index, head in enumerate(heads.split("|")):
        table.add_column(head, justify="left" if index == 0 else "right")
    return table


def print_table(table: Table) -> None:
    """To standard output, in a fixed width where that is no terminal."""
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table)


def print_json(result: dict[str, Any]) -> None:
    """One object, with a few facts of the machine."""
    import numpy as np

    machine = {"python": platform.python_version(), "numpy": np.__version__, "cpus": os.cpu_count()}
    typer.echo(json.dumps(machine | result))


def with_median(rows: list[Any], key: str) -> list[tuple[str, Any]]:
    """All of them, and again the one with the median of `key` (the lower of two)."""
    median = sorted(rows, key=lambda row: getattr(row, key))[(len(rows) - 1) // 2]
    return [*((str(i), row) for i, row in enumerate(rows, 1)), ("median", median)]
