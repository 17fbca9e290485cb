"""The gateway when clients disconnect, requests overlap, and the policy server fails."""

import http.client
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from anyio.from_thread import BlockingPortal
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout import gateway as gateway_module
from hgpo_rllib.rollout.gateway import listen
from tests.processes import wait_until
from tests.unit.rollout.conftest import HELLO, GatewayHarness, opened


def test_a_client_that_disconnects_and_repeats_its_request(harness: GatewayHarness) -> None:
    """The repeated request gets the missed response, and the engine gets one request."""
    played, session = harness.begin()
    release = harness.block()
    with pytest.raises(openai.APITimeoutError):
        harness.client(session, timeout=0.2).chat.completions.create(model="policy", messages=HELLO)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(harness.ask, session)
        time.sleep(0.2)
        release()
        assert again.result(10).choices[0].message.content == "wait 1"
    assert [turn.completion for turn in harness.end(session, played).turns] == ["wait 1"]
    assert len(harness.policy.asked) == 1


def test_the_client_retries_by_itself(harness: GatewayHarness) -> None:
    """The openai client's own retries after timeouts make one turn."""
    played, session = harness.begin()
    release = harness.block()
    client = harness.client(session, max_retries=5, timeout=0.3)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.chat.completions.create, model="policy", messages=HELLO)
        time.sleep(0.8)
        release()
        assert asked.result(20).choices[0].message.content == "wait 1"
    assert len(harness.end(session, played)) == 1


def test_a_response_that_nobody_received_is_no_turn(harness: GatewayHarness) -> None:
    """A response is no turn if the client disconnected and then sent another request."""
    played, session = harness.begin()
    release = harness.block()
    with pytest.raises(openai.APITimeoutError):
        harness.client(session, timeout=0.2).chat.completions.create(model="policy", messages=HELLO)
    release()
    other = [{"role": "user", "content": "at 2 of 2"}]
    harness.ask(session, other)
    harness.post(session, "end", reward=1)
    (turn,) = played.result(10).turns
    assert turn.observation == "at 2 of 2"


def test_parallel_requests(harness: GatewayHarness) -> None:
    """Each parallel request is a turn with its own response, even if their messages are equal."""
    played, session = harness.begin()
    release = harness.block()
    with ThreadPoolExecutor(4) as pool:
        asked = []
        for number in range(4):
            asked.append(pool.submit(harness.ask, session))
            wait_until(lambda count=number + 1: len(harness.policy.asked) == count, 10)  # type: ignore[misc]
        release()
        replies = [request.result(10) for request in asked]
    for number, reply in enumerate(replies):
        harness.post(session, "reward", reward=number, id=reply.id)
    trajectory = harness.end(session, played)
    assert [turn.completion for turn in trajectory.turns] == [f"wait {n}" for n in range(1, 5)]
    assert [step.reward for step in trajectory.steps] == [0, 1, 2, 3]


def test_an_end_before_the_response(harness: GatewayHarness) -> None:
    """Ending a session fails its pending request and keeps the turns before it."""
    played, session = harness.begin()
    harness.ask(session)
    harness.block()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(harness.ask, session, [{"role": "user", "content": "at 2"}])
        wait_until(lambda: len(harness.policy.asked) == 2, 10)
        harness.post(session, "end", won=True)
        assert len(played.result(10)) == 1
        with pytest.raises(openai.APIStatusError, match="ended before the response"):
            asked.result(10)


def test_a_request_that_the_engine_cannot_serve(harness: GatewayHarness) -> None:
    """A failed request returns an error and is no turn, and the client may retry it."""
    played, session = harness.begin()
    harness.policy.error = RequestFailedError("too long")
    with pytest.raises(openai.InternalServerError, match="too long"):
        harness.ask(session)
    harness.policy.error = None
    harness.ask(session)
    assert [turn.completion for turn in harness.end(session, played).turns] == ["wait 2"]


def test_a_policy_server_that_is_lost(harness: GatewayHarness) -> None:
    """The error ends the run, and the client gets status 503."""
    played, session = harness.begin()
    harness.policy.error = RunStoppedError("no replica answers")
    with pytest.raises(openai.APIStatusError) as error:
        harness.ask(session)
    assert error.value.status_code == 503
    with pytest.raises(RunStoppedError, match="no replica answers"):
        played.result(10)


def test_nothing_to_play(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claiming returns status 204 if there is no session, or only a cancelled one."""
    monkeypatch.setattr(gateway_module, "CLAIM_WAIT_S", 0.1)
    assert harness.http.post("/sessions").status_code == 204
    cancelled = harness.play()
    cancelled.cancel()
    assert harness.http.post("/sessions").status_code == 204


def count_claims(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets an entry for each claim of a session."""
    claims, claim = list[Any](), harness.sessions.claim

    async def counted(*arguments: Any) -> Any:
        claims.append(arguments)
        return await claim(*arguments)

    monkeypatch.setattr(harness.sessions, "claim", counted)
    return claims


def test_a_client_that_disconnects_while_it_waits(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a waiting client disconnects, the next client gets the session."""
    claims = count_claims(harness, monkeypatch)
    connection = http.client.HTTPConnection(harness.url.removeprefix("http://"))
    connection.request("POST", "/sessions", headers=dict(harness.http.headers))
    wait_until(lambda: claims, 10)
    connection.close()
    played, session = harness.begin()
    harness.ask(session)
    assert len(harness.end(session, played)) == 1


def test_clients_that_wait_when_the_run_ends(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that wait for a session get status 410 when the gateway stops."""
    with opened(tokenizer, portal) as harness, ThreadPoolExecutor(3) as pool:
        claims = count_claims(harness, monkeypatch)
        waiting = [pool.submit(harness.http.post, "/sessions") for _ in range(3)]
        wait_until(lambda: len(claims) == 3, 10)
        harness.portal.call(harness.gateway.stop)
        assert [request.result(10).status_code for request in waiting] == [410] * 3


def test_an_address_that_is_in_use() -> None:
    """An address in use, or reachable from other machines, raises an error with the setting."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"rollout.gateway_port={port} cannot be used"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"rollout.gateway_host=0.0.0.0: other machines"):
        listen("0.0.0.0", port)


def test_clients_that_wait_for_a_response_when_the_run_ends(
    tokenizer: PreTrainedTokenizerFast, portal: BlockingPortal
) -> None:
    with opened(tokenizer, portal) as harness, ThreadPoolExecutor() as pool:
        played, session = harness.begin()
        harness.block()
        asked = pool.submit(harness.ask, session)
        wait_until(lambda: harness.policy.asked, 10)
        harness.portal.call(harness.gateway.stop)
        with pytest.raises(openai.APIStatusError) as error:
            asked.result(10)
        assert error.value.status_code == 410
        played.cancel()


def test_a_client_that_disconnects_while_it_sends(
    harness: GatewayHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """No traceback is logged, and other clients go on."""
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        address = ("127.0.0.1", int(harness.url.rpartition(":")[2]))
        with socket.create_connection(address) as client:
            client.sendall(b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            time.sleep(0.2)
        time.sleep(0.3)
        played, session = harness.begin()
        harness.ask(session)
        assert len(harness.end(session, played)) == 1
    finally:
        logger.removeHandler(caplog.handler)
    assert "Exception in ASGI application" not in caplog.text
