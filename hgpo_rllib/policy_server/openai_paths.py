"""Middleware that restricts the paths of vLLM's server for `hgpo serve`."""

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class OpenAIPathsOnly:
    """Middleware of vLLM's server that returns 404 for all paths except /v1/… and /health.

    vLLM checks its API key for /v1 only. Its server also has /invocations, which generates
    responses like /v1, and /metrics, /tokenize, /scale_elastic_ep and others.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        path = scope.get("path", "")
        if scope["type"] == "lifespan" or path == "/health" or path.startswith("/v1/"):
            await self.app(scope, receive, send)
        else:
            await self.answer_other_path(scope, receive, send)

    async def answer_other_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request for a path other than /health and /v1/…."""
        await JSONResponse({"error": "not found"}, 404)(scope, receive, send)


class OpenAIPathsAndMetrics(OpenAIPathsOnly):
    """`OpenAIPathsOnly` with /metrics, for requests with the key if a key is set."""

    def __init__(self, app: ASGIApp):
        super().__init__(app)
        self._key = os.environ.get("VLLM_API_KEY")

    async def answer_other_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `OpenAIPathsOnly`."""
        if scope["type"] != "http" or scope["path"] != "/metrics":
            await super().answer_other_path(scope, receive, send)
        elif self._shows_key(Headers(scope=scope)):
            await self.app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    def _shows_key(self, headers: Headers) -> bool:
        if not self._key:
            return True
        scheme, _, shown = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(
            shown.encode(), self._key.encode()
        )
