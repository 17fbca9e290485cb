"""Asking a policy server whose replicas die, and waiting while none runs; with a paper server."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError

from hgpo_rllib.policy_server import client
from hgpo_rllib.policy_server.client import MAX_BATCH, PolicyClient, ask
from hgpo_rllib.policy_server.outage import PolicyServerDownError, unless_down
from hgpo_rllib.policy_server.types import (
    EngineDiedError,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)

SAMPLING = Sampling(1.0, max_tokens=4, stop_token_ids=())
WEIGHTS = WeightTag("now", 1, None)
NEWER = WeightTag("now", 2, None)
LOST = [
    ActorDiedError(),
    ActorUnavailableError("unreachable", None),
    ObjectLostError("00" * 28, None, "call"),
    EngineDiedError("out of memory"),
]


class PaperServer:
    """A handle whose first calls fail as listed; then it answers each prompt with itself."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[tuple[Sequence[Any], WeightTag]] = []
        self.sessions: list[str] = []
        self.generate = self

    def options(self, session_id: str) -> "PaperServer":
        self.sessions.append(session_id)
        return self

    async def remote(
        self, prompts: Sequence[Any], sampling: Sampling, weights: WeightTag
    ) -> list[Any]:
        self.calls.append((prompts, weights))
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return list(prompts)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven attempts to repeat, at once."""
    monkeypatch.setattr(client, "PAUSES_S", (0,) * 7)


def test_lost_prompts_are_asked_again_under_the_same_weights() -> None:
    """Whatever way the replica was lost; its successor must serve the present weights."""
    server = PaperServer(*LOST)
    assert asyncio.run(ask(server, [[1], [2]], SAMPLING, WEIGHTS)) == [[1], [2]]
    assert server.calls == [([[1], [2]], WEIGHTS)] * (len(LOST) + 1)


def test_a_prompt_that_kills_every_replica_is_given_up() -> None:
    server = PaperServer(*(ActorDiedError() for _ in range(100)))
    with pytest.raises(ActorDiedError):
        asyncio.run(ask(server, [[1]], SAMPLING, WEIGHTS))
    assert len(server.calls) == 8


def test_other_errors_are_not_repeated() -> None:
    """A prompt that is too long fails on every replica."""
    server = PaperServer(ValueError("prompt too long"))
    with pytest.raises(ValueError, match="too long"):
        asyncio.run(ask(server, [[1]], SAMPLING, WEIGHTS))
    assert len(server.calls) == 1


async def generate_all(server: PaperServer, prompts: list[Any]) -> list[Any]:
    policy = PolicyClient(server, SAMPLING, WEIGHTS)
    answers = await asyncio.gather(
        *(policy.generate(prompt) for prompt in prompts), return_exceptions=True
    )
    assert policy.in_flight == 0
    return answers


def test_prompts_that_wait_together_share_calls_and_get_their_own_answers() -> None:
    prompts = [[number] for number in range(MAX_BATCH + 4)]
    server = PaperServer(ActorDiedError())
    assert asyncio.run(generate_all(server, prompts)) == prompts
    assert [len(call) for call, _ in server.calls] == [MAX_BATCH, 4, MAX_BATCH]


def test_a_refused_prompt_fails_alone() -> None:
    refused = RequestFailedError("too long")
    assert asyncio.run(generate_all(PaperServer(), [[1], refused, [2]])) == [[1], refused, [2]]

    async def one() -> None:
        await PolicyClient(PaperServer(), SAMPLING, WEIGHTS).generate(refused)

    with pytest.raises(RequestFailedError, match="too long"):
        asyncio.run(one())


def test_sessions_have_calls_of_their_own_where_there_are_several_replicas() -> None:
    """Each names its session, by which Serve chooses the replica."""
    prompts = [Prompt([number], session="ab"[number % 2]) for number in range(MAX_BATCH + 2)]

    async def work(by_session: bool) -> PaperServer:
        server = PaperServer()
        policy = PolicyClient(server, SAMPLING, WEIGHTS, by_session)
        assert await asyncio.gather(*map(policy.generate, prompts)) == prompts
        return server

    apart = asyncio.run(work(by_session=True))
    assert apart.sessions == ["a", "b"]
    assert [[p.session for p in call] for call, _ in apart.calls] == [["a"] * 9, ["b"] * 9]
    together = asyncio.run(work(by_session=False))
    assert (together.sessions, len(together.calls)) == ([], 2)


def test_new_weights_count_from_the_next_call() -> None:
    server = PaperServer()

    async def work() -> None:
        policy = PolicyClient(server, SAMPLING, WEIGHTS)
        await policy.generate(Prompt([1]))
        policy.weights = NEWER
        await policy.generate(Prompt([2]))

    asyncio.run(work())
    assert [weights for _, weights in server.calls] == [WEIGHTS, NEWER]


def test_an_error_reaches_everyone_of_the_call() -> None:
    answers = asyncio.run(generate_all(PaperServer(ValueError("no")), [[1], [2]]))
    assert [type(answer) for answer in answers] == [ValueError, ValueError]


class TestUnlessDown:
    """Time is real here, in hundredths of a second."""

    def wait(self, seconds: float, running: Callable[[], int], max_outage_s: float) -> str:
        async def work() -> str:
            await asyncio.sleep(seconds)
            return "done"

        return asyncio.run(unless_down(work(), running, max_outage_s, period_s=0.01))

    def test_work_ends_while_replicas_run(self) -> None:
        assert self.wait(0.3, lambda: 1, max_outage_s=0.05) == "done"

    def test_an_outage_is_survived_and_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """It may last as long as is allowed, and the next one again."""
        counts = iter([1, 0, 0, 1, 0, 0, *[1] * 1000])
        assert self.wait(0.3, lambda: next(counts), max_outage_s=5) == "done"
        messages = [record.message for record in caplog.records]
        assert [("no replica" in m, "runs again" in m) for m in messages] == [
            (True, False),
            (False, True),
        ] * 2

    def test_a_lasting_outage_names_the_setting(self) -> None:
        with pytest.raises(PolicyServerDownError, match=r"policy_server\.max_outage_s"):
            self.wait(60, lambda: 0, max_outage_s=0.05)

    def test_a_short_outage_after_a_long_time_is_no_long_outage(self) -> None:
        counts = iter([*[1] * 20, 0, *[1] * 1000])
        assert self.wait(0.5, lambda: next(counts), max_outage_s=0.15) == "done"

    def test_errors_of_the_work_come_through(self) -> None:
        async def broken() -> None:
            raise ValueError("of the work")

        with pytest.raises(ValueError, match="of the work"):
            asyncio.run(unless_down(broken(), lambda: 1, 1.0, period_s=0.01))
