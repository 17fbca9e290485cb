"""Templates, headers, forms, errors and the server shared by all pages."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from env_wrappers.errors import DataError
from hgpo_rllib.agent.templates import template_environment
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.policy_server.types import RequestFailedError

HOST = "127.0.0.1"
PORT = 3000
_FOLDER = Path(__file__).parent
_HEADERS = {
    # Products and model output are untrusted: they must not run or fetch anything.
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}

# Escape regardless of the file extension: content must never become markup.
_environment = template_environment(_FOLDER / "templates", autoescape=True)


def application(routes: Sequence[Route]) -> Starlette:
    """Return an application with these routes, the style sheet and error pages.

    It only answers requests for a local host name, which prevents DNS rebinding: a foreign page
    cannot reach it through a name that resolves to this machine.
    """
    return Starlette(
        routes=[*routes, Route("/style.css", _style)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        exception_handlers=dict.fromkeys(
            (HTTPException, DataError, RequestFailedError, RunStoppedError), _error
        ),
    )


def render(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page rendered from a file in `templates/`."""
    text = _environment.get_template(template).render(**values)
    # JSON can contain lone surrogates, which cannot be encoded.
    return HTMLResponse(text.encode("utf-8", "replace"), status, _HEADERS)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form submitted by one of the application's own pages.

    Raises:
        HTTPException: the form is of another origin.
    """
    if request.headers.get("origin") not in (None, f"http://{request.headers['host']}"):
        raise HTTPException(403, "This form comes from another page.")
    return dict(parse_qsl((await request.body()).decode(errors="replace")))


async def _style(request: Request) -> Response:
    return FileResponse(_FOLDER / "style.css", headers=_HEADERS)


async def _error(request: Request, error: Exception) -> Response:
    """Return the page of a wrong request, an unusable game or a model that does not respond."""
    if isinstance(error, HTTPException):
        return render("error.html.jinja", error.status_code, message=error.detail)
    return render("error.html.jinja", 502, message=str(error))


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on the loopback address; None: `PORT`, 0: any free port.

    Raises:
        ConfigError: the port cannot be used.
    """
    port = PORT if port is None else port
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"--port {port} cannot be used ({os.strerror(error.errno or 0)}): "
            "choose another, or 0 for any"
        ) from error


def serve(
    app: Starlette,
    listener: socket.socket,
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> None:
    """Serve an application to browsers on this machine; print the address first.

    Runs until it is interrupted. `run` runs the server's coroutine.
    """
    print(f"http://{HOST}:{listener.getsockname()[1]}/ (Ctrl+C ends)", flush=True)
    # Browsers keep connections open: do not wait for them to close.
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    with listener:
        run(uvicorn.Server(config).serve(sockets=[listener]))
