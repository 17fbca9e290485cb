"""Who is in the store: one session per browser tab, a bounded number of them."""

import secrets
from collections import OrderedDict

from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop

MOST_VISITS = 64


class Visits:
    """Sessions by unguessable names; the one not looked at for longest makes room for another."""

    def __init__(self, shop: Shop):
        """`shop`: where they are."""
        self._shop = shop
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of visits that can go on."""
        return len(self._sessions)

    def open(self, goal: int) -> str:
        """Start a visit for the goal of that index; return its name.

        Raises:
            IndexError: there is no such goal.
        """
        session = Session(self._shop)
        session.start(goal)
        name = secrets.token_urlsafe(9)
        self._sessions[name] = session
        while len(self._sessions) > MOST_VISITS:
            self._sessions.popitem(last=False)
        return name

    def find(self, name: str) -> Session | None:
        """Return a visit's session; None: it is unknown, or had to make room."""
        session = self._sessions.get(name)
        if session is not None:
            self._sessions.move_to_end(name)
        return session
