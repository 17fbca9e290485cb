"""Keep one store session per browser tab, up to a limit."""

import secrets
from collections import OrderedDict

from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop

MOST_VISITS = 64


class Visits:
    """Sessions with unguessable names; the least recently used one is evicted when full."""

    def __init__(self, shop: Shop):
        """Initialize for the store `shop`."""
        self._shop = shop
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of active visits."""
        return len(self._sessions)

    def open(self, goal: int) -> str:
        """Start a visit for the goal of that index; return its name.

        Raises:
            IndexError: ``goal`` is out of range.
        """
        session = Session(self._shop)
        session.start(goal)
        name = secrets.token_urlsafe(9)
        self._sessions[name] = session
        while len(self._sessions) > MOST_VISITS:
            self._sessions.popitem(last=False)
        return name

    def find(self, name: str) -> Session | None:
        """Return a visit's session; None if it is unknown or was evicted."""
        session = self._sessions.get(name)
        if session is not None:
            self._sessions.move_to_end(name)
        return session
