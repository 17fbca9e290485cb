"""Pools of environments, which run in a separate thread with a timeout."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym

T = TypeVar("T")


class EnvFailedError(RuntimeError):
    """An environment call raised an error, which is this error's ``__cause__``."""


class EnvTimeoutError(EnvFailedError):
    """An environment call took longer than `rollout.env_timeout_s`."""


class EnvThread:
    """Run calls one at a time in a thread, without blocking the event loop.

    Python cannot stop a call that hangs, so its thread is abandoned and a new thread replaces it.
    Threads are daemons; otherwise a hanging call would prevent the process from exiting.
    """

    def __init__(self, limit_s: float):
        """`limit_s`: timeout of a call in seconds, not counting the time in the queue."""
        self._limit_s = limit_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._start()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return the value of ``function(*args, **kwargs)``.

        Raises:
            EnvTimeoutError: the call timed out; it may still be running.
            EnvFailedError: the call raised an error.
        """
        job = _Job(partial(function, *args, **kwargs), asyncio.get_running_loop())
        job.timer = job.loop.call_later(self._limit_s, self._check, job)
        self._jobs.put(job)
        try:
            return await job.answer
        finally:
            job.timer.cancel()

    def close(self) -> None:
        """Stop the thread after the calls already in the queue."""
        self._jobs.put(None)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="environments", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while self._thread is threading.current_thread():  # not replaced
            job = self._jobs.get()
            if job is None:
                return
            if job.answer.cancelled():
                continue
            job.started = time.monotonic()
            value, error = None, None
            try:
                value = job.call()
            except Exception as raised:
                error = EnvFailedError(f"{type(raised).__name__}: {raised}")
                error.__cause__ = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
                job.loop.call_soon_threadsafe(job.finish, value, error)

    def _check(self, job: "_Job") -> None:
        """Fail a job that timed out; called by the event loop."""
        left = self._limit_s
        if job.started is not None:
            left -= time.monotonic() - job.started
        if left > 0:
            job.timer = job.loop.call_later(left, self._check, job)
            return
        self._start()
        limit = f"rollout.env_timeout_s={self._limit_s:g}"
        job.finish(None, EnvTimeoutError(f"no answer within {limit}"))


class _Job:
    """A call and the future of its value."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop):
        self.call = call
        self.loop = loop
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.started: float | None = None
        self.timer: asyncio.TimerHandle

    def finish(self, value: Any, error: Exception | None) -> None:
        """Set the result; called in the event loop."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)


class EnvPool:
    """Environments of one split, created on demand and reused for later episodes."""

    def __init__(self, make: Callable[[], gym.Env], thread: EnvThread):
        """Create the first environment in the calling thread: it may load data that all share."""
        self._make = make
        self.call = thread.call
        self.first = make()
        self._idle = [self.first]

    async def take(self) -> gym.Env:
        """Return an environment for one episode. Give it back afterwards unless it failed."""
        return self._idle.pop() if self._idle else await self.call(self._make)

    def give_back(self, env: gym.Env) -> None:
        """Return a working environment to the pool."""
        self._idle.append(env)

    def close(self) -> None:
        """Close the environments that are not in use."""
        for env in self._idle:
            env.close()
