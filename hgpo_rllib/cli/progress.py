"""Show the progress of a command on standard error."""

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
    """Yield `on_progress(done, total)`; its first call shows a progress bar on standard error.

    Args:
        label: description of the task.
        interrupted: message after Ctrl-C or SIGTERM.
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
    """Generate data with a progress bar, and print whether they were generated or already exist.

    Args:
        out: the directory to create.
        what: name of the generated items, in the plural.
        total: number of items.
        generate: generates them, and calls its argument with the numbers done and in total.

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
