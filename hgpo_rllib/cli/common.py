"""What several commands share: arguments, tables and progress bars."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.reporting.console import TrainingConsole, make_console, make_table
from hgpo_rllib.run.directory import DISK_FULL

RUN_FILE = typer.Argument(help="run file, or the name of one in tuned_examples/")
RunFile = Annotated[Path, RUN_FILE]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="settings to override, as section.key=value"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def show(tables: Mapping[str, Sequence[Mapping[str, Any]]], as_json: bool) -> None:
    """Print tables, or one JSON object with the tables, the Python version and the CPU count.

    The keys of a row are the headings; they end in the unit.
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
    if value is None:
        return "–"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_median(rows: Sequence[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the rows with turn numbers, followed by the row with the (lower) median of `key`."""
    median = sorted(rows, key=lambda row: row[key])[(len(rows) - 1) // 2]
    numbered = [{"turn": str(number)} | dict(row) for number, row in enumerate(rows, 1)]
    return [*numbered, {"turn": "median"} | dict(median)]


@contextmanager
def progress(
    label: str, interrupted: str = "nothing was written; repeat the command", bar: bool = True
) -> Iterator[Callable[[int, int], None]]:
    """Yield `on_progress(done, total)`; its first call shows a progress bar on standard error.

    `interrupted` is printed after Ctrl-C or SIGTERM. Without `bar`, nothing else is: a bar would
    erase what the user types.
    """
    console = TrainingConsole(sys.stderr)
    try:
        with console.progress(label) if bar else nullcontext(lambda done, total: None) as advance:
            yield advance
    except KeyboardInterrupt:
        console.say(f"{label}: interrupted; {interrupted}")
        raise


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise ConfigError if the block cannot write `out`; leave a full disk to `main`."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise ConfigError(f"cannot write {out}: {error.strerror}") from error
