"""What happens while no replica runs: whoever waits for answers is told, and not for ever."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError

logger = logging.getLogger(__name__)
PERIOD_S = 5.0  # between looks
T = TypeVar("T")


class PolicyServerDownError(RuntimeError):
    """No replica has run for `policy_server.max_outage_s`."""


def running_replicas(app: str) -> int:
    """Replicas of the application that run, as far as Serve knows.

    Serve learns of a dead process at once, of a dead node after some 15 seconds.
    """
    try:
        application = serve.status().applications.get(app)
    except RayError:  # the controller is being restarted
        return 0
    deployments = application.deployments.values() if application else ()
    return sum(deployment.replica_states.get("RUNNING", 0) for deployment in deployments)


async def unless_down(
    work: Coroutine[Any, Any, T],
    running: Callable[[], int],
    max_outage_s: float,
    period_s: float = PERIOD_S,
) -> T:
    """The result of `work`, which asks the policy server.

    Requests wait for a replica however long none is there: dead nodes may come back.

    Args:
        work: what to wait for; cancelled when the server stays down.
        running: counts the replicas that run; called in a thread.
        max_outage_s: seconds without a replica after which this gives up.
        period_s: seconds between counts.

    Raises:
        PolicyServerDownError: there was no replica for so long.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_watch(running, max_outage_s, period_s))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()  # raises
        return await working
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(running: Callable[[], int], max_outage_s: float, period_s: float) -> None:
    """Raise PolicyServerDownError when none has run for too long; say when that begins and ends."""
    last_seen = time.monotonic()
    down = False
    while True:
        await asyncio.sleep(period_s)
        if await asyncio.to_thread(running):
            if down:
                logger.warning("policy server: a replica runs again")
            last_seen, down = time.monotonic(), False
            continue
        if not down:
            logger.warning(
                "policy server: no replica runs; waiting up to %g s for a node that holds one",
                max_outage_s,
            )
        down = True
        if time.monotonic() - last_seen > max_outage_s:
            raise PolicyServerDownError(
                f"no replica of the policy server has run for {max_outage_s:g} s "
                "(policy_server.max_outage_s): start a node that holds one and resume"
            )
