"""Requests to a fake policy server whose replicas die or are not running."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
)
from ray.serve.exceptions import DeploymentUnavailableError

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server import replicas as replicas_module
from hgpo_rllib.policy_server.client import MAX_BATCH, PolicyClient
from hgpo_rllib.policy_server.replicas import Replicas, describe_ray_error, running_replicas
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
    OutOfMemoryError("killed"),
    ObjectLostError("00" * 28, None, "call"),
    EngineDiedError("out of memory"),
    DeploymentUnavailableError("policy"),
]
ENGINE_DIED = RayTaskError("generate", "", EngineDiedError("the engine died"))


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll every 10 ms and retry after 1 ms."""
    monkeypatch.setattr(replicas_module, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(replicas_module, "RETRY_INTERVAL_S", 0.001)


class FakeServer:
    """A handle whose first calls raise the given errors; later calls return the prompts."""

    def __init__(self, *failures: Exception, seconds: float = 0) -> None:
        self.failures = list(failures)
        self.seconds = seconds
        """Time that each call takes."""
        self.calls: list[tuple[Sequence[Any], WeightTag]] = []
        self.sessions: list[str] = []
        self.generate = self

    def options(self, session_id: str) -> "FakeServer":
        self.sessions.append(session_id)
        return self

    async def remote(
        self, prompts: Sequence[Any], sampling: Sampling, weights: WeightTag
    ) -> list[Any]:
        self.calls.append((prompts, weights))
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        await asyncio.sleep(self.seconds)
        return list(prompts)


class DeadServer(FakeServer):
    """A handle whose calls all raise ActorDiedError."""

    async def remote(self, prompts: Sequence[Any], *args: Any) -> list[Any]:
        self.calls.append((prompts, WEIGHTS))
        raise ActorDiedError()


def replicas(
    server: FakeServer, running: Callable[[], int] = lambda: 1, max_outage_s: float = 60
) -> Replicas:
    return Replicas(server, running, max_outage_s)  # type: ignore[arg-type]


def ask(
    server: FakeServer, running: Callable[[], int] = lambda: 1, max_outage_s: float = 60
) -> list[Any]:
    """Return the responses to two prompts."""
    asked = replicas(server, running, max_outage_s)
    return asyncio.run(asked.generate([[1], [2]], SAMPLING, WEIGHTS))


def test_lost_prompts_are_asked_again_under_the_same_weights() -> None:
    """Prompts of a lost replica are retried with the same weight tag, for any cause of the loss."""
    server = FakeServer(*LOST, ENGINE_DIED.as_instanceof_cause())
    assert ask(server) == [[1], [2]]
    assert server.calls == [([[1], [2]], WEIGHTS)] * (len(LOST) + 2)


def test_a_dead_replica_may_be_hit_for_as_long_as_an_outage_may_last() -> None:
    """Requests are retried until the outage limit, however often they hit a dead replica."""
    server = FakeServer(*(ActorDiedError() for _ in range(100)))
    assert ask(server) == [[1], [2]]
    assert len(server.calls) == 101


def test_a_prompt_that_kills_every_replica_is_given_up() -> None:
    """Requests that kill replicas for longer than `max_outage_s` stop the run."""
    with pytest.raises(RunStoppedError, match=r"policy_server\.max_outage_s.*ActorDiedError"):
        ask(DeadServer(), max_outage_s=0.1)


def test_other_errors_are_not_repeated() -> None:
    """Errors of a request itself, such as a prompt that is too long, are not retried."""
    server = FakeServer(ValueError("prompt too long"))
    with pytest.raises(ValueError, match="too long"):
        ask(server)
    assert len(server.calls) == 1


async def test_the_console_says_why_a_replica_was_lost_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost replica is logged in one line for all its requests, without Ray's traceback."""
    monkeypatch.setattr(replicas_module, "POLL_INTERVAL_S", 5.0)
    policy = replicas(FakeServer(*(ENGINE_DIED.as_instanceof_cause() for _ in range(8))))
    await asyncio.gather(*(policy.generate([[1]], SAMPLING, WEIGHTS) for _ in range(8)))
    assert [record.message for record in caplog.records] == [
        "policy server: EngineDiedError: the engine died; retrying"
    ]
    assert describe_ray_error(ValueError("several\nlines")) == "ValueError: several"


async def generate_all(server: FakeServer, prompts: list[Any]) -> list[Any]:
    policy = PolicyClient(replicas(server), SAMPLING, WEIGHTS)
    answers = await asyncio.gather(
        *(policy.generate(prompt) for prompt in prompts), return_exceptions=True
    )
    assert policy.in_flight == 0
    return answers


def test_prompts_that_wait_together_share_calls_and_get_their_own_answers() -> None:
    prompts = [[number] for number in range(MAX_BATCH + 4)]
    server = FakeServer(ActorDiedError())
    assert asyncio.run(generate_all(server, prompts)) == prompts
    assert [len(call) for call, _ in server.calls] == [MAX_BATCH, 4, MAX_BATCH]


def test_a_refused_prompt_fails_alone() -> None:
    refused = RequestFailedError("too long")
    assert asyncio.run(generate_all(FakeServer(), [[1], refused, [2]])) == [[1], refused, [2]]

    async def one() -> None:
        await PolicyClient(replicas(FakeServer()), SAMPLING, WEIGHTS).generate(refused)

    with pytest.raises(RequestFailedError, match="too long"):
        asyncio.run(one())


def test_sessions_have_calls_of_their_own_where_there_are_several_replicas() -> None:
    """With `by_session`, each session has its own calls, which name the session for Serve."""
    prompts = [Prompt([number], session="ab"[number % 2]) for number in range(MAX_BATCH + 2)]

    async def work(by_session: bool) -> FakeServer:
        server = FakeServer()
        policy = PolicyClient(replicas(server), SAMPLING, WEIGHTS, by_session)
        assert await asyncio.gather(*map(policy.generate, prompts)) == prompts
        return server

    apart = asyncio.run(work(by_session=True))
    assert apart.sessions == ["a", "b"]
    assert [[p.session for p in call] for call, _ in apart.calls] == [["a"] * 9, ["b"] * 9]
    together = asyncio.run(work(by_session=False))
    assert (together.sessions, len(together.calls)) == ([], 2)


async def test_new_weights_count_from_the_next_call() -> None:
    server = FakeServer()
    policy = PolicyClient(replicas(server), SAMPLING, WEIGHTS)
    await policy.generate(Prompt([1]))
    policy.weights = NEWER
    await policy.generate(Prompt([2]))
    assert [weights for _, weights in server.calls] == [WEIGHTS, NEWER]


def test_an_error_reaches_everyone_of_the_call() -> None:
    answers = asyncio.run(generate_all(FakeServer(ValueError("no")), [[1], [2]]))
    assert [type(answer) for answer in answers] == [ValueError, ValueError]


@pytest.mark.parametrize(
    ("failures", "expected"), [([], [[1], [2]]), ([KeyError()], [KeyError] * 2)]
)
def test_a_cancelled_prompt_leaves_the_others_of_its_call(
    failures: list[Exception], expected: list[Any]
) -> None:
    """The other prompts of the call get their responses, or its error."""

    async def work() -> list[Any]:
        policy = PolicyClient(replicas(FakeServer(*failures)), SAMPLING, WEIGHTS)
        prompts: list[Any] = [[0], [1], [2]]
        first, *others = [asyncio.ensure_future(policy.generate(prompt)) for prompt in prompts]
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(20):
            return await asyncio.gather(*others, return_exceptions=True)

    answers = asyncio.run(work())
    assert [type(a) if isinstance(a, Exception) else a for a in answers] == expected


def test_running_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the application's running replicas count; there are none without Serve's controller."""
    states = [{"RUNNING": 2, "STARTING": 1}, {"STOPPING": 1}]
    deployments = {n: SimpleNamespace(replica_states=state) for n, state in enumerate(states)}
    status = SimpleNamespace(applications={"policy": SimpleNamespace(deployments=deployments)})
    monkeypatch.setattr(replicas_module.serve, "status", lambda: status)
    assert [running_replicas(app) for app in ("policy", "another")] == [2, 0]

    def fail() -> None:
        raise ActorDiedError

    monkeypatch.setattr(replicas_module.serve, "status", fail)
    assert running_replicas("policy") == 0


class CountedServer(FakeServer):
    """A server that responds once its replicas have been counted as often as there are counts."""

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self._counts, self._counted = list(counts), threading.Event()

    def running(self) -> int:
        if self._counts:
            return self._counts.pop(0)
        self._counted.set()
        return 1

    async def remote(self, prompts: Sequence[Any], *args: Any) -> list[Any]:
        await asyncio.to_thread(self._counted.wait, 30)
        return list(prompts)


class TestOutage:
    """Outages, in which no replica is running and Serve queues requests without an error."""

    def test_long_work_is_left_alone_while_replicas_run(self) -> None:
        assert ask(FakeServer(seconds=0.3), lambda: 1, max_outage_s=0.05) == [[1], [2]]

    def test_requests_survive_an_outage_that_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = CountedServer(1, 0, 0, 1, 0, 0, 1)
        assert ask(server, server.running, max_outage_s=5) == [[1], [2]]
        messages = [record.message for record in caplog.records]
        assert [("no replica" in m, "running again" in m) for m in messages] == [
            (True, False),
            (False, True),
        ] * 2

    def test_a_lasting_outage_names_the_setting(self) -> None:
        with pytest.raises(RunStoppedError, match=r"policy_server\.max_outage_s"):
            ask(FakeServer(seconds=60), lambda: 0, max_outage_s=0.05)

    def test_a_short_outage_after_a_long_time_is_no_long_outage(self) -> None:
        server = CountedServer(*[1] * 20, 0)
        assert ask(server, server.running, max_outage_s=0.15) == [[1], [2]]

    def test_two_short_outages_are_no_long_outage(self) -> None:
        server = CountedServer(0, *[1] * 20, 0)
        assert ask(server, server.running, max_outage_s=0.15) == [[1], [2]]

    async def test_waiting_requests_share_one_count_of_replicas(self) -> None:
        """Waiting requests share one query of Serve's controller per interval."""
        counts = 0

        def running() -> int:
            nonlocal counts
            counts += 1
            return 1

        policy = replicas(FakeServer(seconds=0.2), running)
        await asyncio.gather(*(policy.generate([[1]], SAMPLING, WEIGHTS) for _ in range(50)))
        assert 1 < counts <= 20

    def test_a_request_that_is_cancelled_leaves_no_other_behind(self) -> None:
        async def work() -> None:
            policy = replicas(FakeServer(seconds=60))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(policy.generate([[1]], SAMPLING, WEIGHTS), 0.05)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(work())
