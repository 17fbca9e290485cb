"""Progress of a command, shown on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from hgpo_rllib.config import ConfigError


@contextmanager
def progress(
    label: str, interrupted: str = "nothing was written; repeat the command"
) -> Iterator[Callable[[int, int], None]]:
    """Yield `on_progress(done, total)`, shown on standard error from its first call on.

    Args:
        label: what is going on.
        interrupted: what to say about it after Ctrl-C or SIGTERM.
    """
    from hgpo_rllib.reporting.console import TrainingConsole

    console = TrainingConsole(sys.stderr)
    advance: Callable[[int], None] | None = None
    try:
        with ExitStack() as shown:

            def on_progress(done: int, total: int) -> None:
                nonlocal advance
                if advance is None:
                    advance = shown.enter_context(console.progress(label, total))
                advance(done)

            yield on_progress
    except KeyboardInterrupt:
        console.say(f"{label}: interrupted; {interrupted}")
        raise


def generate_data(
    out: Path, what: str, total: int, generate: Callable[[Callable[[int, int], None]], object]
) -> None:
    """Generate data with progress, and say whether they were made or already exist.

    Args:
        out: the directory to make.
        what: is made, in the plural.
        total: how many of these.
        generate: does it, and calls its argument with the numbers made and wanted.

    Raises:
        ConfigError: `out` cannot be written.
    """
    made = 0
    with progress(f"generating {what}") as advance:

        def on_progress(done: int, total: int) -> None:
            nonlocal made
            made = done
            advance(done, total)

        try:
            generate(on_progress)
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}") from error
    there = f"these {total} {what} already exist"
    typer.echo(f"{out}: {made} {what}" if made else f"{out}: {there}")
