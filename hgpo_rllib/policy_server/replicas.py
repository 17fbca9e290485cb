"""Send requests to the replicas of a policy server and retry when replicas are lost."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Self

from ray import serve
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.types import (
    EngineDiedError,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

logger = logging.getLogger(__name__)

# Errors of calls whose actor or node was lost. Ray raises `OutOfMemoryError` for an actor that its
# memory monitor killed.
ACTOR_LOST_ERRORS = (RayActorError, OutOfMemoryError, ObjectLostError)
# The same for requests. Serve raises `DeploymentUnavailableError` when replicas do not start.
RETRYABLE_ERRORS = (*ACTOR_LOST_ERRORS, EngineDiedError, DeploymentUnavailableError)
RETRY_INTERVAL_S = 1.0  # before a retry
POLL_INTERVAL_S = 5.0  # between counts of running replicas
Responses = list[Generation | RequestFailedError]


class Replicas:
    """Send requests to the replicas, retry lost requests, and fail after `max_outage_s`.

    It can be used from several threads and event loops.
    """

    def __init__(self, handle: DeploymentHandle, running: Callable[[], int], max_outage_s: float):
        """Create the replicas of a deployment; see `of` for those of an application.

        `running` returns the number of running replicas. It is called in a thread.
        """
        self._handle = handle
        self._running = running
        self.max_outage_s = max_outage_s
        self._next_poll = 0.0
        self._down = False
        self._next_warning = 0.0

    @classmethod
    def of(cls, app: str, max_outage_s: float) -> Self:
        """Return the replicas of the Serve application `app`."""
        return cls(serve.get_app_handle(app), lambda: running_replicas(app), max_outage_s)

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag, session: str = ""
    ) -> Responses:
        """Return one response per prompt, sampled with `weights`, or the error of that prompt.

        Requests of a replica that dies are retried on another replica or on its replacement, which
        loads `weights` first. Requests wait while no replica runs. Those of a `session` go to the
        same replica while it runs.

        Raises:
            RunStoppedError: for `max_outage_s` no replica ran, or every attempt was lost.
        """
        handle = self._handle.options(session_id=session) if session else self._handle
        lost_since: float | None = None
        none_since: float | None = None

        def stop_after_limit(since: float, why: str) -> None:
            if time.monotonic() - since > self.max_outage_s:
                raise RunStoppedError(
                    f"no replica of the policy server has answered for {self.max_outage_s:g} s "
                    f"(policy_server.max_outage_s): {why}"
                )

        while True:
            request = asyncio.ensure_future(_answer(handle, prompts, sampling, weights))
            try:
                while not (await asyncio.wait({request}, timeout=POLL_INTERVAL_S))[0]:
                    if await self.any_running():
                        none_since = None
                    else:
                        none_since = none_since or time.monotonic()
                        stop_after_limit(
                            none_since,
                            "none is running; start a node with enough resources for one",
                        )
                responses = request.result()
            except RETRYABLE_ERRORS as error:
                self._warn(error)
                lost_since = lost_since or time.monotonic()
                stop_after_limit(lost_since, describe_ray_error(error))
                await asyncio.sleep(RETRY_INTERVAL_S)
            else:
                self._end_outage()
                return responses
            finally:
                request.cancel()

    async def any_running(self) -> bool:
        """Return whether any replica ran at the last count, which all waiting requests share.

        Log the beginning and the end of an outage.
        """
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + POLL_INTERVAL_S
            if await asyncio.to_thread(self._running):
                self._end_outage()
            elif not self._down:
                self._down = True
                logger.warning(
                    "policy server: no replica is running; waiting up to %g s for one",
                    self.max_outage_s,
                )
        return not self._down

    def _end_outage(self) -> None:
        """Log the end of an outage, if there was one."""
        if self._down:
            logger.warning("policy server: a replica is running again")
        self._down = False

    def _warn(self, error: Exception) -> None:
        """Log one line for all requests that were lost together."""
        now = time.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + POLL_INTERVAL_S
            logger.warning("policy server: %s; retrying", describe_ray_error(error))


async def _answer(
    handle: DeploymentHandle, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
) -> Responses:
    return await handle.generate.remote(prompts, sampling, weights)


def running_replicas(app: str) -> int:
    """Return the number of running replicas of the application, as known to Serve.

    Serve detects a dead process within two seconds, a dead node after about 15 seconds.
    """
    try:
        application = serve.status().applications.get(app)
    except RayError:  # the controller is being restarted
        return 0
    deployments = application.deployments.values() if application else ()
    return sum(deployment.replica_states.get("RUNNING", 0) for deployment in deployments)


def describe_ray_error(error: Exception) -> str:
    """Return an error in one line, as ``EngineDiedError: …``; Ray's messages have many lines."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    text = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__
