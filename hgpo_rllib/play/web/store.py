"""Browse a store: list its goals, and shop for one as the agent does."""

import random
import secrets
from collections import OrderedDict
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from env_wrappers.webshop import pages
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop
from hgpo_rllib.play.web.application import application, read_form, read_number, render

MOST_VISITS = 64  # one per browser tab; the least recently used one ends first
_PER_PAGE = 20  # goals per page


class Store:
    """Pages of a store; `app` is the application."""

    def __init__(self, shop: Shop, places: Sequence[int]):
        """`places`: indices of the goals that are listed."""
        self._shop, self._places = shop, places
        self._visits: OrderedDict[str, Session] = OrderedDict()
        self.app = application(
            [
                Route("/", self._front),
                Route("/visits", self._enter, methods=["POST"]),
                Route("/visits/{name}", self._look),
                Route("/visits/{name}", self._act, methods=["POST"]),
            ]
        )

    async def _front(self, request: Request) -> Response:
        last = (len(self._places) - 1) // _PER_PAGE + 1
        number = read_number(request.query_params.get("page", "1"), 1, last)
        start = (number - 1) * _PER_PAGE
        shown = range(start, min(start + _PER_PAGE, len(self._places)))
        return render(
            "front.html.jinja",
            products=len(self._shop.catalogue),
            goals=[(place, self._shop.goals[self._places[place]].instruction) for place in shown],
            count=len(self._places),
            number=number,
            last=last,
        )

    async def _enter(self, request: Request) -> Response:
        wanted = (await read_form(request)).get("goal", "")
        if wanted == "any":
            place = random.randrange(len(self._places))
        else:
            place = read_number(wanted, 0, len(self._places) - 1)
        session = Session(self._shop)
        session.start(self._places[place])
        name = secrets.token_urlsafe(9)
        self._visits[name] = session
        if len(self._visits) > MOST_VISITS:
            self._visits.popitem(last=False)
        return _go(name)

    async def _look(self, request: Request) -> Response:
        session = self._session(request)
        page = session.page
        return render(
            f"{page.kind.value}.html.jinja",
            place=self._places.index(session.goal.index),
            page=page,
            ignored=session.ignored,
            observation=[node.text.strip() for node in pages.nodes(page)],
            actions=session.actions,
            receipt=self._receipt(session) if page.kind is pages.Kind.DONE else None,
        )

    async def _act(self, request: Request) -> Response:
        session = self._session(request)
        form = await read_form(request)
        if "words" in form:
            session.step(f"search[{form['words']}]")
        elif "click" in form:
            session.step(f"click[{form['click']}]")
        else:
            raise HTTPException(400, "Nothing was searched for or clicked.")
        return _go(request.path_params["name"])

    def _receipt(self, session: Session) -> dict[str, object]:
        assert session.score is not None
        return {
            "parts": session.score.as_dict(),
            "reward": session.score.reward,
            "price": self._shop.goals.price(session.page.item.index),
            "goal": session.goal,
            "wanted": self._shop.catalogue[session.goal.product],
        }

    def _session(self, request: Request) -> Session:
        name = request.path_params["name"]
        if name not in self._visits:
            raise HTTPException(404, "This visit is over: choose a goal again.")
        self._visits.move_to_end(name)
        return self._visits[name]


def _go(visit: str) -> Response:
    """Redirect after a form, so that the page can be reloaded."""
    return RedirectResponse(f"/visits/{visit}", status_code=303)
