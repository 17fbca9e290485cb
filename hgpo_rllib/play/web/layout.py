"""Templates, headers, forms and errors shared by all pages."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from hgpo_rllib.agent.templates import template_environment

_FOLDER = Path(__file__).parent
_HEADERS = {
    # Products and model output are untrusted: they must not run or fetch anything.
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_MOST_BYTES = 1 << 16  # per form
_MOST_FIELDS = 8

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
        exception_handlers={HTTPException: _error},
    )


def render(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page rendered from a file in `templates/`."""
    text = _environment.get_template(template).render(**values)
    # JSON can contain lone surrogates, which cannot be encoded.
    return HTMLResponse(text.encode("utf-8", "replace"), status, _HEADERS)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form submitted by one of the application's own pages.

    Raises:
        HTTPException: the form is of another origin, too long or invalid.
    """
    if request.headers.get("origin") not in (None, f"http://{request.headers['host']}"):
        raise HTTPException(403, "This form comes from another page.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"This is longer than {_MOST_BYTES:,} bytes.")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:  # too many fields, or bytes that are not text
        raise HTTPException(400, "This form cannot be read.") from error
    return dict(fields)


async def _style(request: Request) -> Response:
    return FileResponse(_FOLDER / "style.css", headers=_HEADERS)


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return render("error.html.jinja", error.status_code, message=error.detail)
