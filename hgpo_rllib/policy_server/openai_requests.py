"""What `hgpo serve` changes about requests: how they end, and some of their errors."""

import asyncio
import json
import signal

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hgpo_rllib.policy_server.supervisor import DRAIN

CONSTRAINTS = {"structured_outputs", "response_format", "tools", "text"}
"""Keys of requests that can hold a grammar or a schema."""


class Drain:
    """Middleware of vLLM's server: after `DRAIN`, it ends when the running requests have finished.

    New requests get 503. vLLM's own ``--shutdown-timeout`` answers them with 500, and those that it
    has accepted but not tokenized yet, too.
    """

    def __init__(self, app: ASGIApp):
        self.app = app
        self._running = 0
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":  # of the server: its event loop runs
            asyncio.get_running_loop().add_signal_handler(DRAIN, self._drain)
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
            signal.raise_signal(signal.SIGTERM)  # at which vLLM ends


class GrammarErrors:
    """Middleware of vLLM's server: a grammar that the engine cannot compile is the client's error.

    vLLM checks grammars and schemas of a request and refuses most of the wrong ones with 400. Where
    only the engine finds out, it says "Internal server error": 500, or as an event of a stream.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = bytearray()
        start: Message = {}

        async def receive_and_keep() -> Message:
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def correct_and_send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] == 500:
                start = message  # with the error itself
                return
            body = message.get("body", b"")
            if is_internal_error(body) and has_constraint(request):
                if start:
                    await JSONResponse(GRAMMAR_ERROR, 400)(scope, receive, send)
                    return
                body = b"data: %s\n\n" % json.dumps(GRAMMAR_ERROR).encode()
                message = {**message, "body": body}
            if start:
                await send(start)
                start = {}
            await send(message)

        await self.app(scope, receive_and_keep, correct_and_send)


GRAMMAR_ERROR = {
    "error": {
        "message": "the grammar or schema cannot be compiled, or allows no response",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}


def is_internal_error(body: bytes) -> bool:
    """Whether that is vLLM's answer, or event, for a request that the engine could not finish."""
    if b"InternalServerError" not in body:
        return False
    try:
        error = json.loads(body.removeprefix(b"data: "))["error"]
        return error["message"] == "Internal server error"
    except (ValueError, KeyError, TypeError):
        return False


def has_constraint(request: bytes | bytearray) -> bool:
    """Whether a request asks for responses by a grammar or a schema."""
    try:
        return not CONSTRAINTS.isdisjoint(json.loads(request))
    except (ValueError, TypeError):
        return False
