"""SIGTERM ends a command as Ctrl-C does, in whatever state it inherited SIGINT."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from hgpo_rllib.run.trainer import terminate_like_interrupt


@pytest.fixture
def signals() -> Iterator[None]:
    """SIGINT is as in a new process, and afterwards as before: Tune leaves a handler behind."""
    handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGINT, handler)


def terminate() -> None:
    """Send SIGTERM to this process, and give the handler a moment."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


@pytest.mark.parametrize("inherited", ["nothing", "ignored", "blocked"])
def test_sigterm_interrupts(inherited: str, signals: None) -> None:
    """A background job of a shell ignores SIGINT; what a process of Ray's starts has it blocked."""
    if inherited == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if inherited == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminate_like_interrupt():
        terminate()
    assert signal.getsignal(signal.SIGTERM) == before
