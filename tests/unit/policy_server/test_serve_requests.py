"""The middleware of `hgpo serve` before a server that answers as vLLM's does."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hgpo_rllib.policy_server.openai_middleware import Drain
from tests.paths import ROOT


async def slow(request: Request) -> Response:
    """Answer after a while."""
    await asyncio.sleep(3)
    return PlainTextResponse("finished")


SERVER = Starlette(
    routes=[
        Route("/slow", slow),
        Route("/health", lambda request: PlainTextResponse("")),
    ]
)
DRAINING = Drain(SERVER)
"""Started by a test in a process of its own."""


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
