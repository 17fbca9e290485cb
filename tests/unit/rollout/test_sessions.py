"""Sessions with clients that repeat requests, disconnect or never end, against a simple model."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError
from hgpo_rllib.rollout.sessions import (
    InvalidRequestError,
    Session,
    SessionEndedError,
    Sessions,
    max_steps,
)
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

INFO = {"goal": "g", "game": "train/0", "task_type": "t", "admissible_actions": []}
TOKENIZER = train_tokenizer(["wait 0 1 2 3 4 5 6 7 8 9"] * 20, [], 320)
RENDERER = TokenRenderer(
    TOKENIZER, AgentSettings(prompt="alfworld_compact", memory_length=2, max_prompt_tokens=200)
)
MAX_TURNS = 6

session = st.integers(0, 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), session, st.integers(0, 2), st.booleans()),
        st.tuples(st.just("respond"), st.booleans()),
        st.tuples(st.just("reward"), session, st.integers(-3, 3)),
        st.tuples(st.just("end"), session, st.booleans()),
    ),
    max_size=40,
)


class Policy:
    """A policy that responds to its oldest request when `respond` is called."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, asyncio.Future[None]]] = []
        self.count = 0
        self.seeds: list[int | None] = []

    async def generate(self, prompt: Prompt) -> Generation:
        self.count += 1
        self.seeds.append(prompt.seed)
        number = self.count
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((number, ready))
        await ready
        ids = np.asarray(TOKENIZER(f"wait {number}", add_special_tokens=False)["input_ids"])
        return Generation(ids.astype(np.int32), np.zeros(len(ids), np.float32), "w:0", "stop", 0.0)

    def respond(self, fails: bool) -> int | None:
        """Respond to the oldest request; return its number."""
        while self.asked:
            number, ready = self.asked.pop(0)
            if ready.cancelled():
                continue
            ready.set_exception(RequestFailedError("x")) if fails else ready.set_result(None)
            return number
        return None


@dataclass
class Expected:
    """A request that the session should have kept."""

    messages: int
    number: int
    connected: bool
    answered: bool = False
    delivered: bool = False
    reward: int = 0


@dataclass
class Client:
    """A session, and what its trajectory should contain."""

    session: Session
    played: "asyncio.Task[object]"
    kept: list[Expected] = field(default_factory=list)
    ended: bool = False
    truncated: bool = False
    won: bool = False

    def delivered(self) -> list[Expected]:
        return [request for request in self.kept if request.delivered]


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def constant(value: bool) -> Callable[[], Awaitable[bool]]:
    async def is_disconnected() -> bool:
        return value

    return is_disconnected


class Simulation:
    """Two sessions whose operations are applied to the code and to the model."""

    async def run(self, done: list[tuple]) -> None:
        self.policy, self.sessions = Policy(), Sessions(60)
        self.requests: list[asyncio.Task[None]] = []
        self.clients = [await self.begin(str(number)) for number in range(2)]
        for name, *arguments in done:
            await getattr(self, name)(*arguments)
            await settle()
        while (self.policy.asked) and any(not ready.done() for _, ready in self.policy.asked):
            await self.respond(False)
            await settle()
        for client in self.clients:
            await self.check(client)
        await asyncio.gather(*self.requests)

    async def begin(self, name: str) -> Client:
        made = Session(self.policy, RENDERER, INFO, "g", name, 1.0, MAX_TURNS)
        played = asyncio.create_task(self.sessions.play(made))
        claimed = await self.sessions.claim(5, constant(False))
        assert claimed is made
        return Client(made, played)

    async def ask(self, which: int, messages: int, connected: bool) -> None:
        client = self.clients[which]

        async def request() -> None:
            content = [{"role": "user", "content": str(messages)}]
            with contextlib.suppress(SessionEndedError, RequestFailedError):
                await client.session.chat(content, str(messages), constant(not connected))

        before = self.policy.count
        self.requests.append(asyncio.create_task(request()))
        await settle()
        if client.ended:
            assert self.policy.count == before
            return
        for kept in client.kept:
            if not kept.delivered and not kept.connected and kept.messages == messages:
                assert self.policy.count == before  # the same response
                kept.connected = connected
                kept.delivered = kept.answered and connected
                return
        if len(client.kept) == MAX_TURNS:
            client.ended = client.truncated = True
            return
        assert self.policy.count == before + 1
        client.kept.append(Expected(messages, self.policy.count, connected))

    async def respond(self, fails: bool) -> None:
        number = self.policy.respond(fails)
        for client in self.clients:
            for kept in [] if client.ended else client.kept:
                if kept.number == number:
                    kept.answered, kept.delivered = True, kept.connected
            if fails and not client.ended:
                client.kept = [kept for kept in client.kept if kept.number != number]

    async def reward(self, which: int, value: int) -> None:
        client = self.clients[which]
        try:
            client.session.add_reward(value)
        except SessionEndedError:
            assert client.ended
        except InvalidRequestError:
            assert not client.delivered()
        else:
            client.delivered()[-1].reward += value

    async def end(self, which: int, won: bool) -> None:
        client = self.clients[which]
        try:
            client.session.end(won)
        except SessionEndedError:
            assert client.ended
        except InvalidRequestError:
            assert not client.delivered()
        else:
            assert not client.ended
            client.ended, client.won = True, won
            client.truncated = not won and len(client.kept) == MAX_TURNS

    async def check(self, client: Client) -> None:
        if not client.ended:
            assert not client.played.done()
            client.session.fail(EnvFailedError("not ended"))
        if not client.ended or not client.delivered():
            with pytest.raises(EnvFailedError):
                await client.played
            return
        trajectory = await client.played
        expected = client.delivered()
        assert [step.turn.completion for step in trajectory.steps] == [
            f"wait {kept.number}" for kept in expected
        ]
        assert [step.turn.observation for step in trajectory.steps] == [
            str(kept.messages) for kept in expected
        ]
        assert [step.reward for step in trajectory.steps] == [kept.reward for kept in expected]
        assert [turn.number for turn in trajectory.turns] == list(range(1, len(expected) + 1))
        assert trajectory.won == client.won
        ends = [(step.terminated, step.truncated) for step in trajectory.steps]
        last = (not client.truncated, client.truncated)
        assert ends == [(False, False)] * (len(ends) - 1) + [last]


# Repeating a failed request makes a new one.
@example([("ask", 0, 1, False), ("respond", True), ("ask", 0, 1, True)])
@settings(max_examples=max(100, settings().max_examples))
@given(operations)
def test_any_clients(done: list[tuple]) -> None:
    """Trajectories hold the responses that clients received, in order, with their rewards."""
    asyncio.run(asyncio.wait_for(Simulation().run(done), 30))


async def test_a_session_that_ends_while_a_request_arrives() -> None:
    """A request is refused if its session has ended, even if it repeats an earlier request."""
    made = Session(Policy(), RENDERER, INFO, "g", "0", 1.0, max_turns=1)
    messages = [{"role": "user", "content": "0"}]

    async def ends() -> bool:
        made.fail(EnvFailedError("reported by the client"))
        return False

    first = asyncio.create_task(made.chat(messages, "0", ends))
    await settle()
    with pytest.raises(SessionEndedError):
        await made.chat(messages, "0", constant(False))
    with pytest.raises(EnvFailedError):
        await made.wait_until_ended(60)
    with pytest.raises(SessionEndedError):
        await first


async def test_seeds_after_a_request_that_failed() -> None:
    """All responses of a session have different seeds, also after a failed request."""
    policy = Policy()
    made = Session(policy, RENDERER, INFO, "g", "0", 1.0, MAX_TURNS)
    content = [{"role": "user", "content": "0"}]
    asked = [asyncio.create_task(made.chat(content, "0", constant(False))) for _ in range(2)]
    await settle()
    policy.respond(fails=True)
    await asyncio.wait({asked[0]})
    asked.append(asyncio.create_task(made.chat(content, "0", constant(False))))
    await settle()
    assert len(set(policy.seeds)) == len(policy.seeds) == 3
    for _ in range(2):
        policy.respond(fails=False)
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(reply).__name__ for reply in ended] == ["RequestFailedError", "Reply", "Reply"]


async def test_the_time_of_the_client() -> None:
    """The time of the environment is from a response to the next request, or to the end."""
    policy, responded = Policy(), list[float]()
    made = Session(policy, RENDERER, INFO, "g", "0", 1.0, MAX_TURNS)
    for content in "01":
        messages = [{"role": "user", "content": content}]
        asked = asyncio.create_task(made.chat(messages, content, constant(False)))
        await settle()
        responded.append(time.perf_counter())
        policy.respond(fails=False)
        await asked
        await asyncio.sleep(0.05)
    made.end(won=True)
    first, second = (await made.wait_until_ended(60)).steps
    assert 0.04 <= first.env_s <= responded[1] - responded[0]
    assert 0.04 <= second.env_s <= time.perf_counter() - responded[1]


async def test_a_session_is_not_lost_when_the_wait_ends() -> None:
    """A session is returned even if the timeout passes during the connection check."""
    sessions = Sessions(60)
    made = Session(Policy(), RENDERER, INFO, "g", "0", 1.0, MAX_TURNS)
    played = asyncio.create_task(sessions.play(made))
    await settle()

    async def is_disconnected() -> bool:
        await asyncio.sleep(0.1)
        return False

    assert await sessions.claim(0.01, is_disconnected) is made
    played.cancel()


async def test_a_session_that_is_cancelled_while_it_is_claimed() -> None:
    """A session that is cancelled during the connection check is not returned."""
    sessions = Sessions(60)
    made = Session(Policy(), RENDERER, INFO, "g", "0", 1.0, MAX_TURNS)
    played = asyncio.create_task(sessions.play(made))
    await settle()

    async def is_disconnected() -> bool:
        played.cancel()
        await settle()
        return False

    assert await sessions.claim(0.01, is_disconnected) is None


@pytest.mark.parametrize(("name", "limit"), [("a", 15), ("b", 20), ("c", 20)])
def test_a_session_has_the_limit_of_its_environment(name: str, limit: int) -> None:
    environments = {"a": {"max_steps": 15}, "b": {}, "c": {"max_steps": 50}}
    options = {"max_steps": 20, "environments": environments}
    assert max_steps(options, INFO | {"mixture": {"environment": name}}) == limit
    assert max_steps(options, INFO) == 20
