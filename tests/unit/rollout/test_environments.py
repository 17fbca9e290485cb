"""Environment calls run one at a time in a thread, with a timeout."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

import gymnasium as gym
import pytest

from hgpo_rllib.rollout.environments import (
    EnvFailedError,
    EnvPool,
    EnvThread,
    EnvTimeoutError,
)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`; fail after 20 seconds, so that no test hangs."""
    return asyncio.run(asyncio.wait_for(work, 20))


def test_calls_take_turns_in_one_other_thread() -> None:
    thread = EnvThread(limit_s=10)
    running, seen = [0], []

    def call(number: int, *, plus: int) -> int:
        running[0] += 1
        seen.append((number, running[0], threading.current_thread()))
        time.sleep(0.001)
        running[0] -= 1
        return number + plus

    async def work() -> list[int]:
        return await asyncio.gather(*(thread.call(call, i, plus=10) for i in range(20)))

    assert run(work()) == list(range(10, 30))
    assert [(number, count) for number, count, _ in seen] == [(i, 1) for i in range(20)]
    assert {t for _, _, t in seen} != {threading.current_thread()}
    assert len({t for _, _, t in seen}) == 1
    thread.close()
    seen[0][2].join(5)
    assert not seen[0][2].is_alive()


def test_the_event_loop_goes_on_meanwhile() -> None:
    thread, release = EnvThread(limit_s=10), threading.Event()

    async def work() -> bool:
        slow = asyncio.create_task(thread.call(release.wait, 5))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not slow.done()
        release.set()
        return await slow

    assert run(work()), "the call blocked the loop, which could not release it"
    thread.close()


def test_an_error_says_what_it_was() -> None:
    thread = EnvThread(limit_s=10)

    async def work() -> int:
        with pytest.raises(EnvFailedError, match=r"ZeroDivisionError: .* by zero") as raised:
            await thread.call(lambda: 1 // 0)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        with pytest.raises(EnvFailedError, match="StopIteration"):
            await thread.call(next, iter(()))
        return await thread.call(lambda: 7)

    assert run(work()) == 7


def test_a_call_that_hangs_is_given_up_and_those_behind_it_are_served() -> None:
    """A second hanging call is abandoned too; the late result of a hanging call is discarded."""
    thread = EnvThread(limit_s=0.2)
    release, threads = threading.Event(), set()

    def call(value: int, hangs: bool = False) -> int:
        threads.add(threading.current_thread())
        if hangs:
            release.wait()
        return value

    async def work() -> list[Any]:
        calls = [thread.call(call, 0, True), thread.call(call, 1), thread.call(call, 0, True)]
        first = await asyncio.gather(*calls, thread.call(call, 2), return_exceptions=True)
        release.set()
        await asyncio.sleep(0.1)
        return [*first, await thread.call(call, 3)]

    results = run(work())
    assert [type(result) for result in results] == [
        EnvTimeoutError,
        int,
        EnvTimeoutError,
        int,
        int,
    ]
    assert "rollout.env_timeout_s=0.2" in str(results[0])
    assert len(threads) == 3
    thread.close()
    for used in threads:
        used.join(5)
        assert not used.is_alive(), "a thread whose place was taken must end"


def test_calls_behind_a_hanging_one_whose_episode_was_cancelled_are_served() -> None:
    """A thread whose call hangs is abandoned after the timeout, even if the call was cancelled."""
    thread, release, started = EnvThread(limit_s=1), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait()

    async def work() -> int:
        hanging = asyncio.create_task(thread.call(hang))
        await asyncio.to_thread(started.wait, 10)
        assert hanging.cancel(), "it has timed out already"
        return await thread.call(lambda: 7)

    assert run(work()) == 7
    release.set()
    thread.close()


def test_a_call_that_was_cancelled_in_the_queue_is_left_out() -> None:
    """Its function is not called, and the calls behind it are served."""
    thread, release, called = EnvThread(limit_s=10), threading.Event(), list[int]()

    async def work() -> int:
        running = asyncio.create_task(thread.call(release.wait, 5))
        queued = asyncio.create_task(thread.call(called.append, 1))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.wait({queued})
        release.set()
        await running
        return await thread.call(lambda: 7)

    assert run(work()) == 7
    assert called == []
    thread.close()


def test_time_in_the_queue_does_not_count() -> None:
    """Twelve queued calls of 0.1 s each stay within a timeout of 1 s per call."""
    thread = EnvThread(limit_s=1.0)

    async def work() -> None:
        await asyncio.gather(*(thread.call(time.sleep, 0.1) for _ in range(12)))

    run(work())
    thread.close()


def test_a_hanging_call_does_not_keep_the_process() -> None:
    """Threads are daemons, so a hanging call does not keep the process alive."""
    program = (
        "import asyncio, time\n"
        "from hgpo_rllib.rollout.environments import EnvThread\n"
        "async def work():\n"
        "    try: await EnvThread(0.1).call(time.sleep, 600)\n"
        "    except RuntimeError as error: print(error)\n"
        "asyncio.run(work())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "no response within rollout.env_timeout_s=0.1\n"


def test_the_pool_lends_what_was_given_back_and_makes_the_rest() -> None:
    made: list[gym.Env] = []

    def make() -> gym.Env:
        made.append(gym.make("CartPole-v1"))
        return made[-1]

    thread = EnvThread(limit_s=10)
    pool = EnvPool(make, thread)
    assert made == [pool.first]

    async def work() -> None:
        async with pool.lend() as first:
            async with pool.lend() as second:
                assert [first, second] == made
            async with pool.lend() as again, pool.lend() as third:
                assert [again, third] == made[1:]

    run(work())


def test_a_pool_closes_the_other_environments_if_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Env(gym.Env):
        closed = False

        def close(self) -> None:
            self.closed = True
            if self is pool.first:
                raise RuntimeError("no such window")

    pool = EnvPool(Env, EnvThread(limit_s=10))

    async def work() -> gym.Env:
        async with pool.lend(), pool.lend() as second:
            return second

    second = run(work())
    pool.close()
    assert (pool.first.closed, second.closed) == (True, True)
    assert "no such window" in caplog.text
