"""An engine that has ended, or hangs, is noticed; one that is only slow is not."""

import asyncio
import itertools
from collections.abc import Callable, Iterable

import pytest

from hgpo_rllib.policy_server.engine_watch import BUSY, SLOWER, engine_failure

PERIOD_S, TIMEOUT_S = 0.01, 0.1
NEVER = 60.0


class Engine:
    """Answers after so many seconds each; then it ends, if it is to."""

    def __init__(self, *seconds: float, then_ends: bool = False) -> None:
        self.seconds = list(seconds)
        self.then_ends = then_ends
        self.has_ended = False

    async def ping(self) -> None:
        """See `Engine`; answers never come when the process has ended."""
        if not self.seconds:
            self.has_ended = self.then_ends
            await asyncio.sleep(NEVER if self.then_ends else 0)
        else:
            await asyncio.sleep(self.seconds.pop(0))


def failure(engine: Engine, cpu_s: Callable[[], float] = lambda: 0.0, within: float = 5) -> str:
    """Why it is taken for failed."""
    watching = engine_failure(engine, PERIOD_S, TIMEOUT_S, cpu_s)
    return asyncio.run(asyncio.wait_for(watching, within))


def assert_is_fine(engine: Engine, cpu_s: Callable[[], float], seconds: float) -> None:
    with pytest.raises(TimeoutError):
        failure(engine, cpu_s, seconds)
    assert not engine.seconds, "too few questions: the test would be blind"


def steadily(per_look: float) -> Callable[[], float]:
    """CPU seconds that grow with every look."""
    used: Iterable[float] = itertools.count(0, per_look)
    iterator = iter(used)
    return lambda: next(iterator)


def test_an_engine_that_ended_without_any_request() -> None:
    assert failure(Engine(0, 0, then_ends=True)) == "the engine has ended"


def test_an_engine_that_hangs() -> None:
    assert "has not answered" in failure(Engine(0, NEVER))


def test_an_engine_that_answers_is_fine() -> None:
    assert_is_fine(Engine(*[0.02] * 5), lambda: 0.0, 0.5)


def test_a_long_step_is_no_hang_while_it_computes() -> None:
    """A compilation, a prefill of many tokens."""
    assert_is_fine(Engine(0, 4 * TIMEOUT_S, 0), steadily(1.0), 8 * TIMEOUT_S)


def test_an_engine_that_spins_for_ever_is_noticed_later() -> None:
    """As threads do that wait for a GPU."""
    assert "has not answered" in failure(Engine(NEVER), steadily(1.0), within=2 * BUSY * TIMEOUT_S)


def test_a_slow_engine_has_more_time() -> None:
    """An engine whose steps were long before is not taken for hung after the shortest timeout."""
    slow = 0.8 * TIMEOUT_S
    assert SLOWER * slow > 3 * TIMEOUT_S
    assert_is_fine(Engine(slow, 3 * TIMEOUT_S, 0), lambda: 0.0, 6 * TIMEOUT_S)


def test_an_error_of_the_engine_is_its_end() -> None:
    class Dead(Engine):
        async def ping(self) -> None:
            raise RuntimeError("EngineCore died")

    assert failure(Dead()) == "the engine has ended: EngineCore died"
