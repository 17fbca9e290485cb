"""The server of `hgpo serve` as a deployment of Ray Serve.

Every replica starts that server on a loopback port of its node and forwards requests to it.
"""

import socket
import tempfile
from collections.abc import AsyncIterator

import httpx
from starlette.requests import Request
from starlette.responses import StreamingResponse

from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.policy_server.openai_middleware import find_key
from hgpo_rllib.policy_server.openai_server import (
    FOLDER,
    KEY_VARIABLE,
    Endpoint,
    prepare_server,
    server_command,
    start_supervised,
    wait_until_healthy,
)

LOOPBACK = "127.0.0.1"
HOP_BY_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}
"""Headers of one connection, which are not forwarded."""


class OpenAIReplica:
    """Serve a policy to clients of OpenAI's API."""

    def __init__(self, config: RunConfig, name: str):
        """Start the server and wait until it is ready.

        Args:
            config: settings whose `model.model_path` is the policy.
            name: name of the model in requests.

        Raises:
            ConfigError: $HGPO_API_KEY is not set on this node, the model has no tokenizer, or the
                installed vLLM is for another device.
            RunStoppedError: the server did not start.
        """
        key = find_key(KEY_VARIABLE)
        if not key:
            raise ConfigError(f"set ${KEY_VARIABLE} on every node: requests must have this key")
        with socket.create_server((LOOPBACK, 0)) as listener:
            port = listener.getsockname()[1]
        endpoint = Endpoint(LOOPBACK, port, name, key)
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER, ignore_cleanup_errors=True)
        arguments, environment = prepare_server(config, endpoint, self._folder.name)
        self._server = start_supervised(server_command(arguments), environment, self._folder.name)
        wait_until_healthy(self._server, endpoint.url)
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(
            base_url=endpoint.url, timeout=None, limits=limits, trust_env=False
        )

    async def __call__(self, request: Request) -> StreamingResponse:
        """Forward a request to the server, and its response as it arrives; called by Serve."""
        headers = [(k, v) for k, v in request.headers.items() if k not in HOP_BY_HOP_HEADERS]
        forwarded = self._client.build_request(
            request.method,
            httpx.URL(path=request.url.path, query=request.url.query.encode() or None),
            headers=headers,
            content=await request.body(),
        )
        response = await self._client.send(forwarded, stream=True)
        headers = [(k, v) for k, v in response.headers.items() if k not in HOP_BY_HOP_HEADERS]
        return StreamingResponse(_body(response), response.status_code, dict(headers))

    async def check_health(self) -> None:
        """Raise an error if the server does not respond; called by Serve."""
        (await self._client.get("/health", timeout=10)).raise_for_status()

    def __del__(self) -> None:
        """Stop the server; called by Serve when it stops a replica."""
        if hasattr(self, "_server"):
            self._server.communicate()  # closes its standard input, and waits until it has exited


async def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in response.aiter_raw():
            yield part
    finally:  # also when the client has disconnected, so that the server stops generating
        await response.aclose()
