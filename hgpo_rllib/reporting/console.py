"""Print the progress of a run to a terminal or a log file."""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hgpo_rllib.jsonl import ALL
from hgpo_rllib.reporting.numbers import decimal, duration, number, percent

HEADER_EVERY = 20
PLAIN_WIDTH = 120
PROGRESS_SECONDS = 5.0
PROGRESS_SHARE = 0.1
LOGGERS = ("hgpo_rllib", "env_wrappers")

Row = Mapping[str, Any]
OnProgress = Callable[[int, int], None]

# Metric, heading, width and format of each column of an iteration's line.
COLUMNS = (
    ("iteration", "iter", 5, "{:.0f}"),
    ("success_rate", "success", 8, "{:.1%}"),
    ("return_mean", "return", 8, "{:.2f}"),
    ("env_steps", "steps", 10, "{:,.0f}"),
    ("rollout_s", "rollout", 9, "{:.1f}s"),
    ("advantage_s", "adv", 7, "{:.1f}s"),
    ("update_s", "update", 8, "{:.1f}s"),
    ("tokens_per_s", "tok/s", 8, "{:,.0f}"),
    ("kl", "KL", 9, "{:.4f}"),
    ("clip_fraction", "clip", 7, "{:.3f}"),
)


def stamped(event: str) -> str:
    """Return a line about an event, prefixed with the time of day."""
    return f"{time.strftime('%H:%M:%S')} {event}"


def make_console() -> Console:
    """Return a console on standard output, wide enough for tables where that is no terminal."""
    width = None if Console().is_terminal else PLAIN_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def make_table(rows: Sequence[Mapping[str, object]], title: str | None = None) -> Table:
    """Return a table with the rows' keys as headings; a row named "all" is set apart."""
    table = Table(title=None if title is None else Text(title, "bold"), title_justify="left")
    for place, heading in enumerate(rows[0] if rows else ()):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        cells = [Text(str(value)) for value in row.values()]
        if cells[0].plain == ALL:
            table.add_section()
        table.add_row(*cells)
    return table


class EventHandler(logging.Handler):
    """Print this project's log records with the time of day, to standard error or a file."""

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; see `logging.Handler`."""
        # Look up the stream for each line: a live display replaces it to show lines above.
        stream = sys.stderr if self._file is None else self._file
        print(stamped(self.format(record)), file=stream, flush=True)


@contextmanager
def log_events(file: TextIO | None = None) -> Iterator[None]:
    """Print this project's warnings with the time of day."""
    handler = EventHandler(file)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(handler)


class TrainingConsole:
    """Print the output of a run through one rich console on standard output.

    Lines about events carry the time of day; table lines do not.

    Stages and progress are live displays on a terminal, and elsewhere plain lines without control
    characters, each flushed when written.
    """

    def __init__(
        self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        stream = sys.stdout if file is None else file
        self._live = stream.isatty()
        self._clock = clock
        self._lines = 0
        self.seconds: dict[str, float] = {}
        """Seconds spent in each `phase`."""
        # Environment variables such as FORCE_COLOR would otherwise add color to a log file.
        self.console = (
            Console(file=stream, highlight=False)
            if self._live
            else Console(file=stream, force_terminal=False, color_system=None, width=PLAIN_WIDTH)
        )

    def say(self, event: str) -> None:
        """Print one line with the time of day."""
        self._line(stamped(event))

    def _line(self, text: str) -> None:
        """Print a line without markup, which names of games and tasks could contain."""
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to `seconds`."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - start

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show that stage `name` is running, then how long it took or that it failed."""
        start = self._clock()
        try:
            if self._live:
                with self.console.status(Text(f"{name} ...")):
                    yield
            else:
                self.say(f"{name} ...")
                yield
        except BaseException:
            self.say(f"{name}: failed after {duration(self._clock() - start)}")
            raise
        self.say(f"{name}: {duration(self._clock() - start)}")

    def progress(self, description: str) -> AbstractContextManager[OnProgress]:
        """Yield `on_progress(done, total)`, whose first call shows the progress."""
        return self._bar(description) if self._live else self._plain(description)

    @contextmanager
    def _bar(self, description: str) -> Iterator[OnProgress]:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(description, total=None, visible=False)
            yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)

    @contextmanager
    def _plain(self, description: str) -> Iterator[OnProgress]:
        said_at, said = self._clock(), 0

        def on_progress(done: int, total: int) -> None:
            nonlocal said_at, said
            late = self._clock() - said_at >= PROGRESS_SECONDS
            far = done - said >= PROGRESS_SHARE * total
            # Require both, so that neither short nor long tasks fill the log.
            if done > said and ((late and far) or done >= total):
                said_at, said = self._clock(), done
                self.say(f"{description}: {done}/{total}")

        yield on_progress

    def iteration(self, metrics: Row) -> None:
        """Print one aligned line for a training iteration."""
        if self._lines % HEADER_EVERY == 0:
            self._line("".join(heading.rjust(width) for _, heading, width, _ in COLUMNS))
        self._lines += 1
        line = ""
        for key, _, width, form in COLUMNS:
            value = number(metrics, key)
            line += ("-" if math.isnan(value) else form.format(value)).rjust(width)
        self._line(line)

    def evaluation(self, rows: Sequence[Row]) -> None:
        """Print one line per evaluated split."""
        for row in rows:
            split = "all held-out" if row.get("split") == ALL else row.get("split")
            rate = percent(number(row, "success_rate"), number(row, "standard_error"))
            self.say(
                f"evaluation after iteration {row.get('iteration')}, {split}: "
                f"{rate} of {decimal(number(row, 'episodes'), 0)} episodes"
            )

    def summary(self, splits: Mapping[str, Row]) -> None:
        """Print the rows of `tables.split_table` by split, and seconds by phase."""
        rows = [{"split": split, **row} for split, row in splits.items()]
        self.console.print(make_table(rows, "Held-out success"))
        phases = ", ".join(f"{name} {value:.0f}" for name, value in self.seconds.items())
        self._line(f"seconds: {phases}")
