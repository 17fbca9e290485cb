"""The gateway over HTTP with the openai client: what is in the trajectory, what is refused."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.config import AgentSettings
from hgpo_rllib.policy_server.types import Generation, Prompt, RequestFailedError
from hgpo_rllib.rollout import gateway as gateway_module
from hgpo_rllib.rollout.environments import EnvFailedError, EnvTimeoutError
from hgpo_rllib.rollout.gateway import Gateway, listen
from hgpo_rllib.rollout.sessions import Session, Sessions
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.section import ConfigError, RunStoppedError
from hgpo_rllib.warmstart.tokenizer import train_tokenizer

INFO = {"goal": "count", "game": "train/3", "task_type": "counting", "admissible_actions": []}
HELLO = [{"role": "user", "content": "at 1 of 2"}]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a small tokenizer."""
    return train_tokenizer(["at 1 of 2, wait. count user assistant"] * 20, [], 320)


class Counter:
    """Policy that responds with the number of the request, after `gate` if there is one."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.asked: list[Prompt] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def generate(self, prompt: Prompt) -> Generation:
        self.asked.append(prompt)
        number = len(self.asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids = self.tokenizer(f"wait {number}", add_special_tokens=False)["input_ids"]
        ids.append(self.tokenizer.eos_token_id)
        logp = np.full(len(ids), -float(number), np.float32)
        return Generation(np.asarray(ids, np.int32), logp, f"w:{number}", "stop", 0.1)


class Table:
    """A gateway with its clients."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal, key: str | None):
        self.tokenizer, self.portal, self.key = tokenizer, portal, key
        self.policy = Counter(tokenizer)
        self.renderer = TokenRenderer(
            tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2, max_prompt_tokens=200),
        )
        self.sessions = portal.call(Sessions, 1.0)
        self.gateway = Gateway(self.sessions, max_tokens=32, key=key)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        portal.call(self.gateway.start, listener)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.openai_http = httpx.Client(trust_env=False)
        self.http = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=20)

    def play(self, max_turns: int = 9) -> Future[Trajectory]:
        """Offer a session."""

        async def play() -> Trajectory:
            session = Session(self.policy, self.renderer, INFO, "0/train/7", "2/0", 1.0, max_turns)
            return await self.sessions.play(session)

        return self.portal.start_task_soon(play)

    def claim(self) -> str:
        return self.http.post("/sessions").json()["id"]

    def client(self, session: str, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/sessions/{session}/v1",
            api_key=self.key or "none",
            http_client=self.openai_http,
            **{"max_retries": 0, **options},
        )

    def ask(self, session: str, messages: Any = HELLO, **options: Any) -> Any:
        return self.client(session).chat.completions.create(
            model="policy", messages=messages, **options
        )

    def post(self, session: str, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/sessions/{session}/{path}", json=body)

    def block(self) -> Callable[[], None]:
        """Let requests wait until the returned function is called."""
        gate = self.policy.gate = self.portal.call(asyncio.Event)
        return lambda: self.portal.call(gate.set)


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    """Return an event loop in a thread."""
    with start_blocking_portal() as portal:
        yield portal


@contextmanager
def opened(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal, key: str | None = None
) -> Iterator[Table]:
    """Return a gateway."""
    table = Table(tokenizer, portal, key)
    yield table
    table.http.close()
    portal.call(table.gateway.stop)


@pytest.fixture(scope="module")
def shared(tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal) -> Iterator[Table]:
    """Return a gateway for all tests."""
    with opened(tokenizer, portal) as table:
        yield table


@pytest.fixture
def table(shared: Table) -> Table:
    """Return a gateway with a new policy."""
    shared.policy = Counter(shared.tokenizer)
    return shared


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_episode(table: Table) -> None:
    """Token ids and log-probabilities are the engine's; rewards and states are the client's."""
    played = table.play()
    task = table.http.post("/sessions").json()
    session = task.pop("id")
    expected = {"game": "train/3", "task_type": "counting", "goal": "count", "max_turns": 9}
    assert task == expected
    system = {"role": "system", "content": "count"}
    first = table.ask(session, [system, *HELLO], extra_body={"anchor": "one"}, max_tokens=32)
    assert first.choices[0].message.content == "wait 1"
    assert first.choices[0].finish_reason == "stop"
    assert first.weight_version == "w:1"
    assert first.usage.completion_tokens == len(table.tokenizer("wait 1")["input_ids"]) + 1
    parts = [{"role": "user", "content": [{"type": "text", "text": "at 2"}]}]
    second = table.ask(session, parts, temperature=1.0, n=1, stream=False)
    assert table.post(session, "reward", reward=0.25).status_code == 204
    assert table.post(session, "reward", reward=0.5, id=first.id).status_code == 204
    assert table.post(session, "end", won=True, reward=10).status_code == 204
    trajectory = played.result(10)
    one, two = trajectory.steps
    assert (one.reward, two.reward) == (0.5, 10.25)
    assert (one.turn.observation, two.turn.observation) == ("one", "at 2")
    assert (one.observation, one.terminated, two.terminated) == ("at 2", False, True)
    assert trajectory.won
    assert not one.info["won"]
    assert [turn.number for turn in trajectory.turns] == [1, 2]
    chat = table.tokenizer.apply_chat_template(
        [system, *HELLO], tokenize=False, add_generation_prompt=True
    )
    expected = table.tokenizer(chat, add_special_tokens=False)["input_ids"]
    assert one.turn.prompt_ids.tolist() == table.policy.asked[0].token_ids == expected
    assert table.tokenizer.decode(one.turn.response_ids, skip_special_tokens=True) == "wait 1"
    assert one.turn.behaviour_logp.tolist() == [-1.0] * len(one.turn.response_ids)
    assert two.turn.weight_version == "w:2"
    assert two.turn.action == second.choices[0].message.content
    assert len({prompt.seed for prompt in table.policy.asked}) == 2


def test_seeds_are_those_of_the_member(table: Table) -> None:
    """The same member gets the same seeds when it is played again."""
    for _ in range(2):
        played = table.play()
        session = table.claim()
        table.ask(session)
        table.post(session, "end")
        played.result(10)
    first, again = table.policy.asked
    assert first.seed == again.seed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature=0.5: the run samples with 1"),
        ({"n": 2}, "n is not supported"),
        ({"stream": True}, "stream is not supported"),
        ({"top_p": 0.9}, "top_p is not supported"),
        ({"stop": ["x"]}, "stop is not supported"),
        ({"seed": 1}, "seed is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "go"}}]}, "tools is not supported"),
        ({"max_tokens": 16}, "max_tokens=16: the run's responses have up to 32 tokens"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: String should match"),
        ({"messages": [{"role": "user", "content": "at 1 " * 200}]}, "max_prompt_tokens is 200"),
    ],
)
def test_requests_that_are_refused(table: Table, options: dict[str, Any], message: str) -> None:
    """Nothing of them is in the episode."""
    played = table.play()
    session = table.claim()
    with pytest.raises(openai.BadRequestError, match=message):
        table.ask(session, **{"messages": HELLO, **options})
    table.ask(session)
    table.post(session, "end")
    assert len(played.result(10)) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("reward", {"reward": float("nan")}),
        ("reward", {"reward": "much"}),
        ("reward", {"reward": 1, "id": "chatcmpl-0"}),
        ("reward", {"rewards": 1}),
        ("end", {"won": "yes"}),
        ("end", {"reward": float("inf")}),
        ("end", "{"),
    ],
)
def test_rewards_that_are_refused(table: Table, path: str, body: Any) -> None:
    """They change nothing."""
    played = table.play()
    session = table.claim()
    table.ask(session)
    content = body if isinstance(body, str) else json.dumps(body)
    refused = table.http.post(f"/sessions/{session}/{path}", content=content)
    assert refused.status_code == 400
    table.post(session, "end", reward=2)
    assert played.result(10).episode_return == 2


def test_a_key(tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal) -> None:
    """Every path needs it."""
    with opened(tokenizer, portal, "secret") as table:
        check_key(table)


def check_key(table: Table) -> None:
    played = table.play()
    session = table.claim()
    table.ask(session)
    for wrong in ({"Authorization": "Bearer guess"}, {"Authorization": "secret"}, {}):
        for path in ("/sessions", f"/sessions/{session}/end", f"/sessions/{session}/v1/x"):
            response = table.openai_http.post(table.url + path, headers=wrong)
            assert response.status_code in (401, 404)
            assert (response.status_code == 404) == path.endswith("x")
    table.post(session, "end")
    assert len(played.result(10)) == 1


def test_sessions_that_ended(table: Table) -> None:
    """They accept nothing more, and neither does a session that never was."""
    played = table.play()
    session = table.claim()
    table.ask(session)
    table.post(session, "end")
    played.result(10)
    for name in (session, "unknown"):
        assert table.post(name, "end").status_code == 410
        assert table.post(name, "reward", reward=1).status_code == 410
        with pytest.raises(openai.APIStatusError) as error:
            table.ask(name)
        assert error.value.status_code == 410


def test_an_end_without_a_response(table: Table) -> None:
    """There is nothing to learn from: the session stays open."""
    played = table.play()
    session = table.claim()
    assert table.post(session, "end").status_code == 400
    table.ask(session)
    table.post(session, "end")
    assert len(played.result(10)) == 1


def test_a_session_that_never_ends(table: Table) -> None:
    """It fails when there is no request for a while, and not while a response takes long."""
    played = table.play()
    session = table.claim()
    release = table.block()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(table.ask, session)
        time.sleep(1.5)  # more than the timeout
        assert not played.done()
        release()
        asked.result(10)
    with pytest.raises(EnvTimeoutError, match="no request for 1 s"):
        played.result(10)
    assert table.post(session, "end").status_code == 410


def test_too_many_turns(table: Table) -> None:
    """The request after the last turn truncates the episode."""
    played = table.play(max_turns=2)
    session = table.claim()
    table.ask(session)
    table.ask(session)
    with pytest.raises(openai.APIStatusError, match="2 responses are over"):
        table.ask(session)
    trajectory = played.result(10)
    assert [step.truncated for step in trajectory.steps] == [False, True]
    assert not trajectory.steps[-1].terminated


def test_a_client_that_reports_an_error(table: Table) -> None:
    """The episode has failed."""
    played = table.play()
    assert table.post(table.claim(), "end", error="no such game").status_code == 204
    with pytest.raises(EnvFailedError, match="reported by the client: no such game"):
        played.result(10)


def test_a_client_that_disconnects_and_repeats_its_request(table: Table) -> None:
    """It gets the response that it missed; the engine is asked once."""
    played = table.play()
    session = table.claim()
    release = table.block()
    with pytest.raises(openai.APITimeoutError):
        table.client(session, timeout=0.2).chat.completions.create(model="policy", messages=HELLO)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(table.ask, session)
        time.sleep(0.2)
        release()
        assert again.result(10).choices[0].message.content == "wait 1"
    table.post(session, "end")
    assert [turn.completion for turn in played.result(10).turns] == ["wait 1"]
    assert len(table.policy.asked) == 1


def test_the_client_retries_by_itself(table: Table) -> None:
    """With the openai client's own retries: one turn, whatever timed out."""
    played = table.play()
    session = table.claim()
    release = table.block()
    client = table.client(session, max_retries=5, timeout=0.3)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.chat.completions.create, model="policy", messages=HELLO)
        time.sleep(0.8)
        release()
        assert asked.result(20).choices[0].message.content == "wait 1"
    table.post(session, "end")
    assert len(played.result(10)) == 1


def test_a_response_that_nobody_received_is_no_turn(table: Table) -> None:
    """The client went on with another request."""
    played = table.play()
    session = table.claim()
    release = table.block()
    with pytest.raises(openai.APITimeoutError):
        table.client(session, timeout=0.2).chat.completions.create(model="policy", messages=HELLO)
    release()
    other = [{"role": "user", "content": "at 2 of 2"}]
    table.ask(session, other)
    table.post(session, "end", reward=1)
    (turn,) = played.result(10).turns
    assert turn.observation == "at 2 of 2"


def test_parallel_requests(table: Table) -> None:
    """Each is a turn with its own response, also those with the same messages."""
    played = table.play()
    session = table.claim()
    release = table.block()
    with ThreadPoolExecutor(4) as pool:
        asked = []
        for number in range(4):
            asked.append(pool.submit(table.ask, session))
            until(lambda count=number + 1: len(table.policy.asked) == count)  # type: ignore[misc]
        release()
        replies = [request.result(10) for request in asked]
    for number, reply in enumerate(replies):
        table.post(session, "reward", reward=number, id=reply.id)
    table.post(session, "end")
    trajectory = played.result(10)
    assert [turn.completion for turn in trajectory.turns] == [f"wait {n}" for n in range(1, 5)]
    assert [step.reward for step in trajectory.steps] == [0, 1, 2, 3]


def test_an_end_before_the_response(table: Table) -> None:
    """The request fails, and the trajectory is what was there."""
    played = table.play()
    session = table.claim()
    table.ask(session)
    table.block()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(table.ask, session, [{"role": "user", "content": "at 2"}])
        until(lambda: len(table.policy.asked) == 2)
        table.post(session, "end", won=True)
        assert len(played.result(10)) == 1
        with pytest.raises(openai.APIStatusError, match="ended before the response"):
            asked.result(10)


def test_a_request_that_the_engine_cannot_serve(table: Table) -> None:
    """The client may try again; the failed one is no turn."""
    played = table.play()
    session = table.claim()
    table.policy.error = RequestFailedError("too long")
    with pytest.raises(openai.InternalServerError, match="too long"):
        table.ask(session)
    table.policy.error = None
    table.ask(session)
    table.post(session, "end")
    assert [turn.completion for turn in played.result(10).turns] == ["wait 2"]


def test_a_policy_server_that_is_lost(table: Table) -> None:
    """The run ends with its line, and the client gets status 503."""
    played = table.play()
    session = table.claim()
    table.policy.error = RunStoppedError("no replica answers")
    with pytest.raises(openai.APIStatusError) as error:
        table.ask(session)
    assert error.value.status_code == 503
    with pytest.raises(RunStoppedError, match="no replica answers"):
        played.result(10)


def test_nothing_to_play(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client asks again; a session that was cancelled meanwhile is not given out."""
    monkeypatch.setattr(gateway_module, "CLAIM_WAIT_S", 0.1)
    assert table.http.post("/sessions").status_code == 204
    cancelled = table.play()
    cancelled.cancel()
    assert table.http.post("/sessions").status_code == 204


def test_a_client_that_disconnects_while_it_waits(table: Table) -> None:
    """The session goes to the next client."""
    connection = http.client.HTTPConnection(table.url.removeprefix("http://"))
    connection.request("POST", "/sessions", headers=dict(table.http.headers))
    time.sleep(0.2)
    connection.close()
    played = table.play()
    session = table.claim()
    table.ask(session)
    table.post(session, "end")
    assert len(played.result(10)) == 1


def test_clients_that_wait_when_the_run_ends(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal
) -> None:
    """All of them get status 410."""
    with opened(tokenizer, portal) as table, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(table.http.post, "/sessions") for _ in range(3)]
        time.sleep(0.2)
        table.portal.call(table.gateway.stop)
        assert [request.result(10).status_code for request in waiting] == [410] * 3


def test_an_address_that_is_in_use() -> None:
    """One line that names the settings."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"rollout.gateway_port={port} cannot be used"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"rollout.gateway_host=0.0.0.0: other machines"):
        listen("0.0.0.0", port)
