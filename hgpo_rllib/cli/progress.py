"""Progress of a command, shown on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield `on_progress(done, total)`, shown on standard error from its first call on."""
    from hgpo_rllib.reporting.console import TrainingConsole

    advance: Callable[[int], None] | None = None
    with ExitStack() as shown:

        def on_progress(done: int, total: int) -> None:
            nonlocal advance
            if advance is None:
                advance = shown.enter_context(TrainingConsole(sys.stderr).progress(label, total))
            advance(done)

        yield on_progress
