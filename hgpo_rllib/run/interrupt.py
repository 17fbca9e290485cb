"""SIGTERM ends a command as Ctrl-C does."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in the block, so that all that was started is stopped."""
    # Processes of Ray's inherit a blocked SIGINT, so that Ctrl-C passes them by: jobs do, too.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def interrupt(signum: int, frame: Any) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a background job of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
