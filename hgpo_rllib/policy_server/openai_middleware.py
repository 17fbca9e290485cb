"""Middleware of vLLM's server for `hgpo serve`: which paths it has, and its graceful shutdown."""

import asyncio
import os
import secrets
import signal

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from hgpo_rllib.errors import ConfigError
from hgpo_rllib.policy_server.supervisor import DRAIN_SIGNAL


def find_key(variable: str) -> str | None:
    """Return the API key in an environment variable, None if it is empty or not set.

    Raises:
        ConfigError: no request can have this key in a header.
    """
    key = os.environ.get(variable) or None
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(
            f"${variable}: use printable ASCII characters, without spaces or line breaks at the "
            "ends"
        )
    return key


def has_key(headers: Headers, key: str) -> bool:
    """Return whether a request has the API key, as OpenAI's clients send it; "": none is needed."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    is_same = secrets.compare_digest(given.encode(), key.encode())
    return not key or (scheme.lower() == "bearer" and is_same)


class OpenAIPathsOnly:
    """Middleware of vLLM's server that returns 404 for all paths except /v1/… and /health.

    vLLM checks its API key for /v1 only. Its server also has /invocations, which generates
    responses like /v1, and /metrics, /tokenize, /scale_elastic_ep and others.
    """

    metrics = False

    def __init__(self, app: ASGIApp):
        self.app = app
        self._key = os.environ.get("VLLM_API_KEY", "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        path = scope.get("path", "")
        if scope["type"] == "lifespan" or path == "/health" or path.startswith("/v1/"):
            await self.app(scope, receive, send)
        elif not (self.metrics and scope["type"] == "http" and path == "/metrics"):
            await JSONResponse({"error": "not found"}, 404)(scope, receive, send)
        elif has_key(Headers(scope=scope), self._key):
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)


class OpenAIPathsAndMetrics(OpenAIPathsOnly):
    """`OpenAIPathsOnly` with /metrics, for requests with the key if a key is set."""

    metrics = True


class DrainMiddleware:
    """Middleware of vLLM's server that drains it: it exits after `DRAIN_SIGNAL` and all requests.

    New requests get status 503. vLLM's own ``--shutdown-timeout`` returns 500 for them, and for
    requests that it has accepted but not tokenized yet.
    """

    def __init__(self, app: ASGIApp):
        self.app = app
        self._running = 0
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":  # sent at startup, in the running event loop
            asyncio.get_running_loop().add_signal_handler(DRAIN_SIGNAL, self._drain)
            await self.app(scope, receive, send)
        elif self._draining:
            headers = {"Connection": "close"}
            response = JSONResponse({"error": "the server is shutting down"}, 503, headers)
            await response(scope, receive, send)
        else:
            self._running += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self._running -= 1
                self._end_when_idle()

    def _drain(self) -> None:
        self._draining = True
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._draining and not self._running:
            signal.raise_signal(signal.SIGTERM)  # vLLM exits
