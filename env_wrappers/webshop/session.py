"""Navigate the store: map a page and an action to the next page.

The rules, including their quirks, are those of the original store. Where the original crashes,
the action is ignored.
"""

import copy
import hashlib
import json
import random
from dataclasses import replace

from env_wrappers.spaces import ANY_SEARCH
from env_wrappers.webshop import pages
from env_wrappers.webshop.pages import Page, PageKind
from env_wrappers.webshop.reward import ScoreDetails
from env_wrappers.webshop.shop import Shop

_SUB_PAGES = {name.lower(): name for name in pages.SUB_PAGES}


def parse_action(action: str) -> tuple[str, str] | None:
    """Return the name and the argument of an action ``name[argument]``; None: it has no such form.

    The same as matching ``(.+)\\[(.+)\\]`` at the start, but in linear time: the name reaches up to
    the last bracket that can open an argument, on the first line, and what follows is dropped.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else None


class Session:
    """A customer in a shop; ``start`` sets the goal, ``step`` takes an action.

    Attributes:
        show_attributes: whether products have a sub page of attributes.
        page: the current page.
        clickables: the lower-cased texts of its clickable elements.
        goal: the current goal.
        score_details: parts of the score of the last purchase; None before.
        ignored: whether the last action had no effect.
    """

    def __init__(self, shop: Shop, show_attributes: bool = False) -> None:
        self._shop = shop
        self.show_attributes = show_attributes

    def start(self, goal: int) -> None:
        """Restart on the index page, with the goal of this index."""
        self.goal = self._shop.goals[goal]
        self.score_details: ScoreDetails | None = None
        self.ignored = False
        self._rng = random.Random(goal)
        self._drawn = 0  # number of searches for random products
        self._show(self._index())

    def step(self, action: str) -> tuple[float, bool]:
        """Take an action; return its score and whether it was a purchase (others score 0).

        As in the original, a purchase does not end the session: searching remains possible.
        """
        page = self._next(action)
        self.ignored = page is None
        if page is not None:
            self._show(page)
        if page is None or page.kind is not PageKind.DONE:
            return 0.0, False
        return page.score, True

    def observation(self, mode: str) -> str:
        """Return the page in one of ``pages.MODES``."""
        return pages.MODES[mode](self.page)

    @property
    def actions(self) -> list[str]:
        """The actions that the page offers; only the index page shows a search bar."""
        clicks = [f"click[{name}]" for name in self.clickables]
        return [ANY_SEARCH, *clicks] if self.page.kind is PageKind.INDEX else clicks

    @property
    def state_hash(self) -> str:
        """Hex digest of everything that future pages depend on, and of the order of chosen options.

        The order does not affect purchases, but is part of the address (observation mode "url").
        """
        page = self.page
        asin = page.product and page.product.asin
        state = [self.goal.index, page.kind, page.keywords, page.number, page.sub_page, asin]
        state += [list(page.chosen.items()), sorted(page.visited), self._drawn]
        # JSON escapes lone surrogates, which cannot be encoded.
        return hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()

    def _show(self, page: Page) -> None:
        self.page = page
        self.clickables = pages.clickables(page)

    def _next(self, action: str) -> Page | None:
        """Return the page that an action leads to, or None if the action is ignored."""
        match parse_action(action):
            case ("search", words):
                return self._results(tuple(words.lower().split(" ")), 1)
            case ("click", name) if name.lower() in self.clickables:
                return self._clicked(name.lower())
        return None

    def _clicked(self, name: str) -> Page | None:
        """Follow a click, resolved by text first: an option called "buy now" buys."""
        page = self.page
        match name:
            case "search":
                return None
            case "buy now":
                return self._bought()
            case "back to search":
                return self._index()
            case "next >" if pages.apparent_kind(page) is PageKind.RESULTS:
                return self._results(page.keywords, page.number + 1)
            case "< prev":
                return self._previous()
        if name in _SUB_PAGES:
            shown = replace(page, kind=PageKind.SUB_PAGE, sub_page=_SUB_PAGES[name])
            return shown if page.product is not None else None
        return self._item(name)

    def _previous(self) -> Page | None:
        page = self.page
        match pages.apparent_kind(page):
            case PageKind.RESULTS:
                return self._results(page.keywords, page.number - 1)
            case PageKind.ITEM:
                return self._results(page.keywords, page.number)
        return replace(page, kind=PageKind.ITEM, sub_page="")

    def _index(self) -> Page:
        return Page(
            str(self.goal.index), self.goal.instruction, show_attributes=self.show_attributes
        )

    def _results(self, keywords: tuple[str, ...], number: int) -> Page | None:
        """Return a results page, keeping the visited products but not the product and options."""
        if keywords[0] == "<r>":
            self._drawn += 1
            self._rng = copy.copy(self._rng)  # copies of the session share it
        found = self._shop.find(keywords, self._rng)
        if found is None:
            return None
        shown = found[(number - 1) * pages.PAGE_SIZE : number * pages.PAGE_SIZE]
        return replace(
            self._index(),
            kind=PageKind.RESULTS,
            keywords=keywords,
            number=number,
            total=len(found),
            results=tuple(self._shop.catalogue[index] for index in shown),
            visited=self.page.visited,
        )

    def _item(self, name: str) -> Page | None:
        """Open a product, or choose an option of the current one."""
        page = self.page
        if page.kind is PageKind.ITEM:  # an option; of groups with the same value, the last counts
            group = [group for group, values in page.item.options.items() if name in values][-1]
            return replace(page, chosen={**page.chosen, group: name})
        found = self._shop.catalogue.find("asin", name.upper())
        if not found:  # a lower-case identifier: the original looks for upper case
            return None
        product = self._shop.catalogue[found[0]]
        visited = page.visited | {product.asin}
        return replace(page, kind=PageKind.ITEM, product=product, results=(), visited=visited)

    def _bought(self) -> Page | None:
        product = self.page.product
        if product is None:
            return None
        score, self.score_details = self._shop.score(product, self.page.chosen, self.goal)
        return replace(self.page, kind=PageKind.DONE, score=score)
