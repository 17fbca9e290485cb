"""The middleware of `hgpo serve` before a server that answers as vLLM's does."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from hgpo_rllib.policy_server.openai_grammar import GrammarErrors
from hgpo_rllib.policy_server.openai_middleware import Drain
from tests.paths import ROOT

MESSAGE = "Internal server error"  # of vLLM, for what its engine could not finish
BAD_GRAMMAR = {"structured_outputs": {"grammar": "root ::= "}}


def error(message: str, code: int = 500) -> dict[str, Any]:
    """What vLLM answers."""
    kind = "InternalServerError" if code == 500 else "BadRequestError"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def complete(request: Request) -> Response:
    """Fail as the request says."""
    wanted = await request.json()
    failure = error(wanted.get("message", MESSAGE))
    if not wanted.get("stream"):
        return JSONResponse(failure, 500)

    async def events() -> AsyncIterator[str]:
        yield 'data: {"choices": []}\n\n'
        yield f"data: {json.dumps(failure)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def slow(request: Request) -> Response:
    """Answer after a while."""
    await asyncio.sleep(3)
    return PlainTextResponse("finished")


SERVER = Starlette(
    routes=[
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/slow", slow),
        Route("/health", lambda request: PlainTextResponse("")),
    ]
)
DRAINING = Drain(SERVER)
"""Started by a test in a process of its own."""


class TestGrammarErrors:
    @pytest.fixture
    def client(self) -> TestClient:
        """Return a client of the server that fails."""
        return TestClient(GrammarErrors(SERVER))

    @pytest.mark.parametrize(
        "constraint",
        [
            BAD_GRAMMAR,
            {"response_format": {"type": "json_schema"}},
            {"tools": []},
            {"text": {"format": {"type": "json_schema"}}},
        ],
    )
    def test_are_the_clients(self, client: TestClient, constraint: dict[str, Any]) -> None:
        """In every form that a request can have."""
        answer = client.post("/v1/completions", json=constraint)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == 400
        assert "grammar" in answer.json()["error"]["message"]

    def test_in_a_stream(self, client: TestClient) -> None:
        """Its status was sent before; the event says it."""
        answer = client.post("/v1/completions", json=BAD_GRAMMAR | {"stream": True})
        first, second, last = answer.text.strip().split("\n\n")
        assert json.loads(first.removeprefix("data: ")) == {"choices": []}
        assert json.loads(second.removeprefix("data: "))["error"]["code"] == 400
        assert last == "data: [DONE]"

    @pytest.mark.parametrize(
        "request_body",
        [{}, {"prompt": '"structured_outputs"'}, BAD_GRAMMAR | {"message": "engine died"}],
    )
    def test_others_are_the_servers(self, client: TestClient, request_body: dict[str, Any]) -> None:
        """Without a grammar, and when the engine is gone."""
        answer = client.post("/v1/completions", json=request_body)
        assert answer.status_code == 500
        assert answer.json() == error(request_body.get("message", MESSAGE))
        stream = client.post("/v1/completions", json={"stream": True, "message": "engine died"})
        assert '"code": 500' in stream.text


class TestDrain:
    @pytest.fixture
    def url(self) -> str:
        """Return where the server will be."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

    @pytest.fixture
    def server(self, url: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Return a process that serves, as vLLM's does, with uvicorn."""
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "tests.unit.policy_server.test_serve_requests:DRAINING",
        ]
        with subprocess.Popen([*command, "--port", url.rpartition(":")[2]], cwd=ROOT) as process:
            deadline = time.monotonic() + 60
            while status(f"{url}/health") != 200:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
            process.kill()

    def test_running_requests_finish(self, server: "subprocess.Popen[bytes]", url: str) -> None:
        """New ones get 503 meanwhile; then the server ends."""
        with ThreadPoolExecutor(4) as clients:
            running = [clients.submit(status, f"{url}/slow") for _ in range(4)]
            time.sleep(1)
            server.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
            assert [status(f"{url}/slow"), status(f"{url}/health")] == [503, 503]
            assert [one.result() for one in running] == [200] * 4
        assert server.wait(10) == -signal.SIGTERM

    def test_an_idle_server_ends_at_once(self, server: "subprocess.Popen[bytes]", url: str) -> None:
        server.send_signal(signal.SIGUSR1)
        assert server.wait(10) == -signal.SIGTERM


def status(url: str) -> int:
    """The status of an answer; 0: there is none."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
