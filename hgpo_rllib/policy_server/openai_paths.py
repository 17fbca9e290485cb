"""What `hgpo serve` lets clients reach of vLLM's server."""

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
            await JSONResponse({"error": "not found"}, 404)(scope, receive, send)
