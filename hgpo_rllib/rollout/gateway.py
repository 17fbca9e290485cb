"""The gateway: an OpenAI-compatible HTTP server through which other programs play the episodes.

docs/gateway.md describes its requests. It runs on the event loop of the rollouts.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.policy_server.openai_middleware import has_key
from hgpo_rllib.policy_server.openai_server import Endpoint, make_endpoint
from hgpo_rllib.policy_server.types import RequestFailedError
from hgpo_rllib.rollout.environments import EnvFailedError
from hgpo_rllib.rollout.sessions import InvalidRequestError, SessionEndedError, Sessions

CLAIM_WAIT_S = 10.0
"""Seconds that a request for a session waits for one."""
BodyT = TypeVar("BodyT", bound=BaseModel)
IGNORED_FIELDS = {"model", "user", "metadata", "store"}
"""Fields of a chat request that change nothing."""
REQUIRED_VALUES: dict[str, Any] = {
    "n": 1,
    "stream": False,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
}
"""Fields that are accepted only with these values: the run's settings determine the sampling."""


class Body(BaseModel):
    """JSON body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Part(Body):
    """Text part of a message."""

    type: str = Field(pattern="^text$")
    text: str


class ChatMessage(Body):
    """Chat message."""

    role: str = Field(pattern="^(system|developer|user|assistant)$")
    content: str | list[Part]

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, message: Any) -> Any:
        """Some clients send back ``"tool_calls": null`` with a response."""
        if not isinstance(message, dict):
            return message
        return {name: value for name, value in message.items() if value not in (None, [])}

    def plain(self) -> dict[str, str]:
        """Return the message with its text in one piece.

        Chat templates call the role "developer" by its older name, or leave its messages out.
        """
        role = "system" if self.role == "developer" else self.role
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": role, "content": text}


class ChatRequest(BaseModel):
    """Body of a chat request; `ChatRequest.check` refuses other fields."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: list[ChatMessage] = Field(min_length=1)
    anchor: str | None = None
    """Text that identifies the state; None: the last message."""
    temperature: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    def check(self, temperature: float, max_tokens: int) -> None:
        """Raise InvalidRequestError for sampling parameters other than the run's."""
        if self.temperature not in (None, temperature):
            raise InvalidRequestError(
                f"temperature={self.temperature:g}: the run samples with {temperature:g}"
            )
        for name in ("max_tokens", "max_completion_tokens"):
            limit = getattr(self, name)
            if limit is not None and limit < max_tokens:
                raise InvalidRequestError(
                    f"{name}={limit}: the run's responses have up to {max_tokens} tokens"
                )
        for name, value in (self.model_extra or {}).items():
            if (
                name not in IGNORED_FIELDS
                and value is not None
                and value != REQUIRED_VALUES.get(name)
            ):
                raise InvalidRequestError(
                    f"{name} is not supported: leave it out, the run decides on sampling"
                )


class Reward(Body):
    """Body of a request that adds a reward."""

    reward: FiniteFloat
    id: str | None = None
    """Id of the rewarded response; None: the last one."""


class End(Body):
    """Body of a request that ends a session."""

    won: bool = False
    reward: FiniteFloat = 0.0
    error: str | None = None
    """Reason why the episode failed; another client plays it again."""


def listen(host: str, port: int) -> tuple[Endpoint, socket.socket]:
    """Return the address of the gateway with its API key, and a socket that is bound to it.

    Raises:
        ConfigError: the address cannot be used, or other machines reach it and there is no key.
    """
    options = ("rollout.gateway_host=", "rollout.gateway_port=")
    endpoint = make_endpoint(host, port, "policy", options=options)
    listener = socket.socket(socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((endpoint.address, endpoint.port))
    return endpoint, listener


class Gateway:
    """HTTP server of `Sessions`."""

    def __init__(self, sessions: Sessions, max_tokens: int, key: str | None):
        """Create the server; `max_tokens` is the limit of a response.

        Clients must send the API key `key`. None: no key is required.
        """
        self.sessions = sessions
        self._max_tokens = max_tokens
        self._key = key or ""
        session = "/sessions/{session}"
        routes = {
            "/sessions": self._claim,
            f"{session}/v1/chat/completions": self._chat,
            f"{session}/reward": self._reward,
            f"{session}/end": self._end,
        }
        app = Starlette(
            routes=[
                Route(path, self._handler(handle), methods=["POST"])
                for path, handle in routes.items()
            ]
        )
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket, in this event loop."""
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def stop(self) -> None:
        """Tell waiting clients that the run has ended, and stop the server; call after `start`."""
        self.sessions.close()
        await asyncio.sleep(0.1)  # for these responses
        self._server.should_exit = True
        await self._serving

    def _handler(
        self, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that checks key and origin, and answers errors as OpenAI's API does."""

        async def handler(request: Request) -> Response:
            if not has_key(request.headers, self._key):
                return _error(401, "the API key is missing or wrong")
            if "origin" in request.headers:  # browsers send it; any web page could play
                return _error(403, "requests from web pages are refused")
            try:
                return await handle(request)
            except InvalidRequestError as error:
                return _error(400, str(error))
            except SessionEndedError as error:
                return _error(410, str(error))
            except RequestFailedError as error:
                return _error(500, str(error))
            except RunStoppedError as error:
                return _error(503, str(error))
            except ClientDisconnect:  # before the whole body had arrived
                return _error(400, "the client disconnected")

        return handler

    async def _claim(self, request: Request) -> Response:
        """Give a session to the client: status 200, or 204 if nothing is to be played now."""
        await request.body()  # before it is read, Starlette does not notice a disconnection
        session = await self.sessions.claim(CLAIM_WAIT_S, request.is_disconnected)
        if session is None:
            return Response(status_code=204)
        task = {name: session.info[name] for name in ("game", "task_type", "goal")}
        return JSONResponse({"id": session.id, "max_turns": session.max_turns, **task})

    async def _chat(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["session"])
        body = await _body(request, ChatRequest)
        body.check(session.temperature, self._max_tokens)
        messages = [message.plain() for message in body.messages]
        anchor = messages[-1]["content"] if body.anchor is None else body.anchor
        reply = await session.chat(messages, anchor, request.is_disconnected)
        turn = reply.turn.result()
        prompt_tokens, completion_tokens = turn.tokens
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": turn.completion},
            "finish_reason": "length" if turn.response_truncated else "stop",
            "logprobs": None,
        }
        return JSONResponse(
            {
                "id": reply.id,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "policy",
                "weight_version": turn.weight_version,
                "choices": [choice],
                "usage": {
                    "prompt_tokens": prompt_tokens,
                    "completion_tokens": completion_tokens,
                    "total_tokens": prompt_tokens + completion_tokens,
                },
            }
        )

    async def _reward(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["session"])
        body = await _body(request, Reward)
        session.add_reward(body.reward, body.id)
        return Response(status_code=204)

    async def _end(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["session"])
        body = await _body(request, End)
        if body.error is not None:
            session.fail(EnvFailedError(f"reported by the client: {body.error}"))
        else:
            session.end(body.won, body.reward)
        return Response(status_code=204)


async def _body(request: Request, model: type[BodyT]) -> BodyT:
    """Return the validated body of a request."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidRequestError(f"{place}: {first['msg']}") from error


def _error(status: int, message: str) -> JSONResponse:
    """Return an error in the format of OpenAI's API."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": None}}, status)
