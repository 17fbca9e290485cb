"""Print results of commands as tables or as one JSON object."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from hgpo_rllib.reporting.console import make_console, make_table

JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def show(tables: Mapping[str, Sequence[Mapping[str, Any]]], as_json: bool) -> None:
    """Print tables, or one JSON object with the tables, the Python version and the CPU count.

    Args:
        tables: rows by table name; the keys of a row are the headings and end in the unit.
        as_json: print JSON.
    """
    if as_json:
        facts = {"python": platform.python_version(), "cpus": os.cpu_count()}
        typer.echo(json.dumps(facts | dict(tables)))
        return
    for name, rows in tables.items():
        print_rows(rows, name.replace("_", " "))


def print_rows(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print a table with the rows' keys as headings, of fixed width unless on a terminal."""
    shown = [{k.replace("_", " "): _cell(value) for k, value in row.items()} for row in rows]
    make_console().print(make_table(shown, title))


def _cell(value: Any) -> str:
    """Format a float with three digits, or all digits before the decimal point."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_median(rows: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the rows with turn numbers, followed by the row with the (lower) median of `key`."""
    median = sorted(rows, key=lambda row: row[key])[(len(rows) - 1) // 2]
    numbered = [{"turn": str(number)} | dict(row) for number, row in enumerate(rows, 1)]
    return [*numbered, {"turn": "median"} | dict(median)]
