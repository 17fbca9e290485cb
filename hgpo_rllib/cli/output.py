"""How commands print numbers: a table for each list of rows, or one JSON object."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 116  # where the output is no terminal

JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def show(tables: Mapping[str, Sequence[Mapping[str, Any]]], as_json: bool) -> None:
    """Print tables by name, or one JSON object that holds them and a few facts of the machine.

    Args:
        tables: rows by table; the keys of a row, which end in its units, are the headings.
        as_json: print the object.
    """
    if as_json:
        facts = {"python": platform.python_version(), "cpus": os.cpu_count()}
        typer.echo(json.dumps(facts | dict(tables)))
        return
    for name, rows in tables.items():
        print_rows(rows, name.replace("_", " "))


def print_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table whose headings are the keys of the rows, in a fixed width but on a terminal."""
    table = Table(title=title, title_justify="left")
    for place, head in enumerate(rows[0] if rows else ()):
        table.add_column(head.replace("_", " "), justify="right" if place else "left")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table)


def _cell(value: Any) -> str:
    """Three digits of a number, all of those before the point."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_median(rows: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """The turns, numbered, and again the one with the median of `key` (the lower of two)."""
    median = sorted(rows, key=lambda row: row[key])[(len(rows) - 1) // 2]
    numbered = [{"turn": str(number)} | dict(row) for number, row in enumerate(rows, 1)]
    return [*numbered, {"turn": "median"} | dict(median)]
