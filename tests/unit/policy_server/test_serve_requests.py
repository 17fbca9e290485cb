"""The middleware of `hgpo serve` in front of a server that behaves like vLLM's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hgpo_rllib.policy_server.openai_middleware import DrainMiddleware
from tests.paths import ROOT
from tests.processes import free_port, wait_until

FOLDER = "HGPO_TEST_FOLDER"
"""Environment variable of the server: the folder where `slow` notes its requests."""


async def slow(request: Request) -> Response:
    """Record the request in a file, and respond when the file `finish` exists."""
    folder = Path(os.environ[FOLDER])
    (folder / f"request-{uuid.uuid4().hex}").touch()
    while not (folder / "finish").exists():
        await asyncio.sleep(0.05)
    return PlainTextResponse("finished")


SERVER = Starlette(
    routes=[
        Route("/slow", slow),
        Route("/health", lambda request: PlainTextResponse("")),
    ]
)
DRAINING = DrainMiddleware(SERVER)
"""Started by a test in a process of its own."""


class TestDrain:
    @pytest.fixture
    def url(self) -> str:
        """Return the URL that the server will use."""
        return f"http://127.0.0.1:{free_port()}"

    @pytest.fixture
    def server(self, url: str, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
        """Yield a process that serves with uvicorn, like vLLM's."""
        application = "tests.unit.policy_server.test_serve_requests:DRAINING"
        command = [sys.executable, "-m", "uvicorn", application, "--port", url.rpartition(":")[2]]
        environment = os.environ | {FOLDER: str(tmp_path)}
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            deadline = time.monotonic() + 60
            while status(f"{url}/health") != 200:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
            process.kill()

    def test_running_requests_finish(
        self, server: "subprocess.Popen[bytes]", url: str, tmp_path: Path
    ) -> None:
        """Running requests finish while new ones get 503; then the server ends."""
        with ThreadPoolExecutor(4) as clients:
            running = [clients.submit(status, f"{url}/slow") for _ in range(4)]
            wait_until(lambda: len(list(tmp_path.glob("request-*"))) == 4, 20)
            server.send_signal(signal.SIGUSR1)
            wait_until(lambda: status(f"{url}/health") == 503, 20)
            assert status(f"{url}/slow") == 503
            assert not any(one.done() for one in running)
            (tmp_path / "finish").touch()
            assert [one.result() for one in running] == [200] * 4
        assert server.wait(10) == -signal.SIGTERM

    def test_an_idle_server_ends_at_once(self, server: "subprocess.Popen[bytes]", url: str) -> None:
        server.send_signal(signal.SIGUSR1)
        assert server.wait(10) == -signal.SIGTERM


def status(url: str) -> int:
    """Return the status of the response, or 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
