"""Notices that an engine has ended, or hangs.

An engine's own health check may see the first alone, as vLLM's does. A suspended engine, or one
whose device never answers, keeps all requests waiting without an error.
"""

import asyncio
import time
from collections.abc import Callable

import psutil

from hgpo_rllib.policy_server.engine import Engine

PERIOD_S = 1.0
TIMEOUT_S = 30.0  # at least; and SLOWER times the slowest answer so far
SLOWER = 5
BUSY = 10  # an engine that computes has so many times the timeout: it may compile, or prefill


def descendants_cpu_s() -> float:
    """CPU seconds that the living processes below this one have used: an engine and its workers."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:  # ended meanwhile
            continue
        seconds += times.user + times.system
    return seconds


async def engine_failure(
    engine: Engine,
    period_s: float = PERIOD_S,
    timeout_s: float = TIMEOUT_S,
    cpu_s: Callable[[], float] = descendants_cpu_s,
) -> str:
    """Wait until the engine has ended or hangs; says which.

    Every period the engine is asked for something that costs it nothing. It answers between two
    steps, whatever they are: a long batch, new weights, a compilation. It hangs when it has not
    answered for `timeout_s`, or longer where answers have been slow before, and uses no CPU; or has
    not for `BUSY` times as long, whatever it does.

    Args:
        engine: the one to watch.
        period_s: seconds between questions, and between looks at what is not answered yet.
        timeout_s: the shortest timeout.
        cpu_s: CPU seconds of the engine so far.
    """
    slowest_s = 0.0
    while True:
        start = time.monotonic()
        timeout = max(timeout_s, SLOWER * slowest_s)
        question = asyncio.create_task(engine.ping())
        silent_s, cpu_before = 0.0, 0.0
        while not (await asyncio.wait({question}, timeout=period_s))[0]:
            if engine.has_ended:
                question.cancel()
                return "the engine has ended"
            # Periods count, not the clock: when this process was suspended, too, that is no sign.
            if not silent_s:
                cpu_before = cpu_s()
            silent_s += period_s
            if silent_s > timeout:
                is_busy = cpu_s() - cpu_before > 0.01 * silent_s
                if not is_busy or silent_s > BUSY * timeout:
                    question.cancel()
                    return f"the engine has not answered for {silent_s:.0f} s"
        if question.exception():
            return f"the engine has ended: {question.exception()}"
        slowest_s = max(slowest_s, time.monotonic() - start)
        await asyncio.sleep(period_s)
