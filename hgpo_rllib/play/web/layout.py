"""What the pages have in common: templates, headers, forms, errors."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent
_HEADERS = {
    # Products and models write what is shown: nothing in it may run or be fetched.
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_MOST_BYTES = 1 << 16  # of a form
_MOST_FIELDS = 8

_environment = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,  # rather than by file extension: nothing shown may become markup
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def application(routes: Sequence[Route]) -> Starlette:
    """Return an application with these routes, the style sheet and pages for errors.

    It answers only to a browser that asks for this machine by a name of its own: a page from
    elsewhere cannot reach it through a name that is made to lead here.
    """
    return Starlette(
        routes=[*routes, Route("/style.css", _style)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
        exception_handlers={HTTPException: _error},
    )


def render(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page made from a file of `templates/`."""
    text = _environment.get_template(template).render(**values)
    # Half of a character pair, which JSON can hold, has no encoding.
    return HTMLResponse(text.encode("utf-8", "replace"), status, _HEADERS)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that one of our own pages sent.

    Raises:
        HTTPException: it comes from elsewhere, is too long or no form.
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
    except ValueError as error:  # too many fields, or bytes that are no text
        raise HTTPException(400, "This form cannot be read.") from error
    return dict(fields)


async def _style(request: Request) -> Response:
    return FileResponse(_FOLDER / "style.css", headers=_HEADERS)


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return render("error.html.jinja", error.status_code, message=error.detail)
