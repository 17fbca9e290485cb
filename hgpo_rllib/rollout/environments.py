"""Pools of environments, which run in a separate thread with a timeout."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import gymnasium as gym

from env_wrappers.errors import describe_error
from hgpo_rllib.policy_server.types import RequestFailedError

logger = logging.getLogger(__name__)
T = TypeVar("T")


class EnvFailedError(RuntimeError):
    """The environment of an episode failed, or the client that plays the episode.

    The ``__cause__`` is the error that the environment raised, if it raised one.
    """


class EnvTimeoutError(EnvFailedError):
    """An environment or a client did not respond in time.

    The limits are `rollout.env_timeout_s` and `rollout.session_timeout_s`.
    """


class EnvThread:
    """Run calls one at a time in a thread, without blocking the event loop.

    Python cannot stop a call that hangs, so its thread is abandoned and a new thread replaces it.
    Threads are daemons; those of an executor would prevent the process from exiting.
    """

    def __init__(self, limit_s: float):
        """`limit_s`: timeout of a call in seconds, not counting the time in the queue."""
        self._limit_s = limit_s
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._start()

    async def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return the value of ``function(*args, **kwargs)``.

        Raises:
            EnvTimeoutError: the call timed out; it may still be running.
            EnvFailedError: the call raised an error.
        """
        future: Future[T] = Future()
        started: float | None = None

        def job() -> None:
            nonlocal started
            if not future.set_running_or_notify_cancel():
                return
            started = time.monotonic()
            try:
                future.set_result(function(*args, **kwargs))
            except Exception as error:
                # Not `error` itself: asyncio cannot pass on a StopIteration.
                failed = EnvFailedError(f"{type(error).__name__}: {error}")
                failed.__cause__ = error
                future.set_exception(failed)

        def left() -> float:
            return self._limit_s - (0 if started is None else time.monotonic() - started)

        def abandon() -> None:
            if not future.done():
                self._start()

        self._jobs.put(job)
        answer = asyncio.wrap_future(future)
        try:
            while not (await asyncio.wait({answer}, timeout=left()))[0]:
                if left() <= 0:
                    abandon()
                    limit = f"rollout.env_timeout_s={self._limit_s:g}"
                    raise EnvTimeoutError(f"no response within {limit}")
        except asyncio.CancelledError:
            if future.running():  # if it hangs, do not block later calls
                asyncio.get_running_loop().call_later(left(), abandon)
            raise
        finally:
            answer.cancel()  # does nothing if it is done
        return answer.result()

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
            job()


class EnvPool:
    """Environments of one split, created on demand and reused for later episodes."""

    def __init__(self, make: Callable[[], gym.Env], thread: EnvThread):
        """Create the first environment in the calling thread: it may load data that all share."""
        self._make = make
        self.call = thread.call
        self.first = make()
        self._idle = [self.first]

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[gym.Env]:
        """Lend an environment for one episode.

        One that raised an error is closed. One that hangs, or whose episode was cancelled, is left
        alone, as a call may still be running.
        """
        env = self._idle.pop() if self._idle else await self.call(self._make)
        try:
            yield env
        except EnvFailedError as error:
            if not isinstance(error, EnvTimeoutError):
                with suppress(EnvFailedError):
                    await self.call(env.close)
            raise
        except RequestFailedError:
            self._idle.append(env)
            raise
        self._idle.append(env)

    def close(self) -> None:
        """Close the environments that are not in use."""
        for env in self._idle:
            try:
                env.close()
            except Exception as error:  # the episodes are complete
                logger.warning("an environment was not closed: %s", describe_error(error))
