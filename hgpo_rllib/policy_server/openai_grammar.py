"""Middleware of vLLM's server for `hgpo serve`: status codes of grammar errors."""

import json

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONSTRAINTS = {"structured_outputs", "response_format", "tools", "text"}
"""Request keys that can hold a grammar or a schema."""


class GrammarErrors:
    """Middleware of vLLM's server that reports grammars the engine cannot compile as status 400.

    vLLM validates the grammar or schema of a request and rejects most invalid ones with 400. If
    only the engine fails, vLLM responds "Internal server error", as status 500 or stream event.
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
                start = message  # held back until the body arrives
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
    """Whether `body` is vLLM's response, or stream event, for a request that the engine failed."""
    if b"InternalServerError" not in body:
        return False
    try:
        error = json.loads(body.removeprefix(b"data: "))["error"]
        return error["message"] == "Internal server error"
    except (ValueError, KeyError, TypeError):
        return False


def has_constraint(request: bytes | bytearray) -> bool:
    """Whether a request constrains responses by a grammar or a schema."""
    try:
        return not CONSTRAINTS.isdisjoint(json.loads(request))
    except (ValueError, TypeError):
        return False
