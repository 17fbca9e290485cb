"""Progress of a command, shown on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def progress(
    label: str, interrupted: str = "nothing was written; start it again"
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
