"""Environments that members borrow, called in a thread of their own and under a time limit."""

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
    """A call of an environment raised an error, which is the cause of this one."""


class EnvTimeoutError(EnvFailedError):
    """A call of an environment took longer than `rollout.env_timeout_s`."""


class EnvThread:
    """Runs calls one after the other, away from the event loop, which goes on meanwhile.

    A call that hangs cannot be ended: its thread is left alone with it, and another one takes its
    place. Threads are daemons, or a call that hangs would keep the process from ending.
    """

    def __init__(self, limit_s: float):
        """`limit_s`: seconds that a call may take, without the time it waits for its turn."""
        self._limit_s = limit_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._start()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """The value of ``function(*args, **kwargs)``.

        Raises:
            EnvTimeoutError: it takes too long; it may be running still.
            EnvFailedError: it raises something.
        """
        job = _Job(partial(function, *args, **kwargs), asyncio.get_running_loop())
        job.timer = job.loop.call_later(self._limit_s, self._check, job)
        self._jobs.put(job)
        try:
            return await job.answer
        finally:
            job.timer.cancel()

    def close(self) -> None:
        """End the thread when it has done what it was given."""
        self._jobs.put(None)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="environments", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while self._thread is threading.current_thread():  # no other has taken its place
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
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                job.loop.call_soon_threadsafe(job.finish, value, error)

    def _check(self, job: "_Job") -> None:
        """Called by the event loop when a job may have taken too long."""
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
    """A call, and the future that gets its value."""

    def __init__(self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop):
        self.call = call
        self.loop = loop
        self.answer: asyncio.Future[Any] = loop.create_future()
        self.started: float | None = None
        self.timer: asyncio.TimerHandle

    def finish(self, value: Any, error: Exception | None) -> None:
        """Called in the event loop."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)


class EnvPool:
    """The environments of one split: made when they are needed, kept for the next episode."""

    def __init__(self, make: Callable[[], gym.Env], thread: EnvThread):
        """Make the first one at once, in the calling thread: it may read data that all share."""
        self._make = make
        self.call = thread.call
        self.first = make()
        self._idle = [self.first]

    async def take(self) -> gym.Env:
        """An environment for one episode, to be given back unless it fails."""
        return self._idle.pop() if self._idle else await self.call(self._make)

    def give_back(self, env: gym.Env) -> None:
        """It works and may be lent again."""
        self._idle.append(env)

    def close(self) -> None:
        """Close the environments that are not in use."""
        for env in self._idle:
            env.close()
