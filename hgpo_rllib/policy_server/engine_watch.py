"""Detect that an engine has exited or hangs.

An engine's own health check, such as vLLM's, may detect an exit only. An engine that is suspended,
or whose device does not respond, blocks all requests without an error.
"""

import asyncio
import time
from collections.abc import Callable

import psutil

from hgpo_rllib.policy_server.engine import Engine

PERIOD_S = 1.0
TIMEOUT_S = 30.0  # minimum; the timeout is at least SLOWER times the slowest reply so far
SLOWER = 5
BUSY = 10  # factor on the timeout of an engine that uses CPU: it may be compiling or prefilling


def descendants_cpu_s() -> float:
    """Return the CPU seconds used by the live descendants: the engine and its workers."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:  # exited in the meantime
            continue
        seconds += times.user + times.system
    return seconds


async def engine_failure(
    engine: Engine,
    period_s: float = PERIOD_S,
    timeout_s: float = TIMEOUT_S,
    cpu_s: Callable[[], float] = descendants_cpu_s,
) -> str:
    """Wait until the engine has exited or hangs, and return the reason.

    The engine is pinged once per period. It replies between two steps, such as a long batch, a
    weight update or a compilation. The timeout is the larger of `timeout_s` and `SLOWER` times the
    slowest reply so far. The engine hangs if it has not replied within the timeout and uses no
    CPU, or has not replied within `BUSY` times the timeout.
    `cpu_s` returns the CPU seconds used by the engine so far.
    """
    slowest_s = 0.0
    while True:
        start = time.monotonic()
        timeout = max(timeout_s, SLOWER * slowest_s)
        ping = asyncio.create_task(engine.ping())
        silent_s, cpu_before = 0.0, 0.0
        while not (await asyncio.wait({ping}, timeout=period_s))[0]:
            if engine.has_ended:
                ping.cancel()
                return "the engine has ended"
            # Count periods instead of clock time, which also passes while this process is
            # suspended.
            if not silent_s:
                cpu_before = cpu_s()
            silent_s += period_s
            if silent_s > timeout:
                is_busy = cpu_s() - cpu_before > 0.01 * silent_s
                if not is_busy or silent_s > BUSY * timeout:
                    ping.cancel()
                    return f"the engine has not answered for {silent_s:.0f} s"
        if ping.exception():
            return f"the engine has ended: {ping.exception()}"
        slowest_s = max(slowest_s, time.monotonic() - start)
        await asyncio.sleep(period_s)
