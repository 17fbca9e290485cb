"""What `hgpo serve` lets clients reach of vLLM's server."""

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class OpenAIPathsOnly:
    """Middleware of vLLM's server: whatever is not under /v1/ is not there, but for /health.

    vLLM's key guards /v1 alone. Its server also answers at /invocations, which generates as /v1
    does, at /metrics, /tokenize, /scale_elastic_ep and others.
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
        """A path that is neither /health nor under /v1/."""
        await JSONResponse({"error": "not found"}, 404)(scope, receive, send)


class OpenAIPathsAndMetrics(OpenAIPathsOnly):
    """The same, with /metrics for those who show the key (for all, where there is none)."""

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
