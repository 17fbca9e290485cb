"""Handle SIGTERM like Ctrl-C."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM in the block, so that started processes are stopped."""
    # Ray starts its processes, including jobs, with SIGINT blocked to protect them from Ctrl-C.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def interrupt(signum: int, frame: Any) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
