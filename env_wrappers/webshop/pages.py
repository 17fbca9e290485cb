"""Pages of the store: their text, clickable elements and address.

Everything here is a pure function of a ``Page``. Texts, order and quirks are those of the original
store, which served HTML and parsed it; no HTML is created here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from jinja2.utils import htmlsafe_json_dumps

from env_wrappers.webshop.records import Product

ADDRESS = "http://127.0.0.1:3000"  # of the original server; shown in the url mode
PAGE_SIZE = 10
SEPARATOR = " [SEP] "

SEARCH = "Search"
BACK_TO_SEARCH = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")

_HTML_BLANKS = " \n\t\x0c\r"


class PageKind(StrEnum):
    """Kinds of pages; the values are their names in addresses."""

    INDEX = "index"
    RESULTS = "search_results"
    ITEM = "item_page"
    SUB_PAGE = "item_sub_page"
    DONE = "done"


class Role(Enum):
    """Role of a text on a page."""

    TEXT = "text"
    BUTTON = "button"
    LINK = "link"  # to a product
    OPTION = "option"


_Elements = Iterator[tuple[Role, str]]  # texts of a page, from top to bottom


@dataclass(frozen=True, slots=True)
class Page:
    """All state that a page is rendered from.

    Attributes:
        session: name of the session, part of every address.
        instruction: the goal in words.
        kind: kind of the page.
        show_attributes: whether products have the sub page "Attributes".
        keywords: the words of the last search.
        number: number of the results page, usually from 1; quirks of the addresses also lead to 0.
        total: number of products found.
        results: the products on this page.
        product: the current product, on item pages, their sub pages and at the end.
        sub_page: one of ``SUB_PAGES`` on a sub page.
        chosen: option group to the value clicked, in the order in which groups were first clicked.
        visited: identifiers of the products opened since the index page.
        score: score of the purchase, at the end; 0 before.
    """

    session: str
    instruction: str
    kind: PageKind = PageKind.INDEX
    show_attributes: bool = False
    keywords: tuple[str, ...] = ()
    number: int = 0
    total: int = 0
    results: tuple[Product, ...] = ()
    product: Product | None = None
    sub_page: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    visited: frozenset[str] = frozenset()
    score: float = 0.0

    @property
    def item(self) -> Product:
        """The current product, on pages that show one."""
        assert self.product is not None
        return self.product


def url(page: Page) -> str:
    """Return the address of a page, unescaped as in the original."""
    results = ["+".join(page.keywords), str(page.number)]
    match page.kind:
        case PageKind.INDEX:
            return f"{ADDRESS}/{page.session}"
        case PageKind.RESULTS:
            parts = results
        case PageKind.ITEM:
            parts = [page.item.asin, *results, json.dumps(page.chosen)]
        case PageKind.SUB_PAGE:
            parts = [page.item.asin, *results, page.sub_page, str(page.chosen)]
        case PageKind.DONE:
            parts = [page.item.asin, str(page.chosen)]
    return "/".join([ADDRESS, page.kind.value, page.session, *parts])


def apparent_kind(page: Page) -> PageKind:
    """Return the kind of page that the address appears to name.

    The original looks for the names anywhere in the address, so a search for one of them can
    mislead it. The result determines where "< Prev" and "Next >" lead.
    """
    address = url(page)
    kinds = (PageKind.RESULTS, PageKind.ITEM, PageKind.SUB_PAGE, PageKind.DONE)
    return next((kind for kind in kinds if kind.value in address), PageKind.INDEX)


def text(page: Page) -> str:
    """Return the texts of a page, joined by ``SEPARATOR``."""
    return SEPARATOR.join([words.strip() for _, words in _shown(page)])


def text_rich(page: Page) -> str:
    """Return the texts of a page line by line, marking buttons and clicked elements."""
    address = url(page)
    lines: list[str] = []
    clicked: list[str] = []
    for role, words in _shown(page):
        if role is Role.TEXT:
            lines.append(words)
        elif role is Role.BUTTON:
            lines.append(_marked(words))
        elif role is Role.LINK:
            lines.append("\n" + _marked(words, words in page.visited))
        else:
            # As in the original, search the address: group names and quoted words also match.
            is_clicked = f'"{words}"' in address
            lines.append("  " + _marked(words, is_clicked))
            if is_clicked:
                clicked.append(f"You have clicked {words}.")
    return "\n".join([*reversed(clicked), *lines, ""])


def _marked(words: str, clicked: bool = False) -> str:
    mark = "clicked button" if clicked else "button"
    return f"[{mark}] {words} [{mark}_]"


MODES: Mapping[str, Callable[[Page], str]] = {"text": text, "text_rich": text_rich, "url": url}
"""Observation modes by name."""


def clickables(page: Page) -> list[str]:
    """Return the lower-cased texts of all clickable elements, in the original's order.

    Buttons come first. If several elements have the same text, it is listed once.
    """
    clickable = [element for element in _ELEMENTS[page.kind](page) if element[0] is not Role.TEXT]
    clickable.sort(key=lambda element: element[0] is not Role.BUTTON)
    return list(dict.fromkeys(words.lower() for _, words in clickable))


def _shown(page: Page) -> _Elements:
    """Yield the texts that HTML shows: blanks alone become one, or nothing with a line break."""
    for role, words in _ELEMENTS[page.kind](page):
        if words.strip(_HTML_BLANKS):
            yield role, words
        elif words and "\n" not in words:
            yield role, " "


def _index(page: Page) -> _Elements:
    yield Role.TEXT, "WebShop"
    yield Role.TEXT, "Instruction: "
    yield Role.TEXT, page.instruction
    yield Role.BUTTON, SEARCH


def _head(page: Page) -> _Elements:
    yield Role.TEXT, "Instruction:"
    yield Role.TEXT, page.instruction
    yield Role.BUTTON, BACK_TO_SEARCH


def _results(page: Page) -> _Elements:
    yield from _head(page)
    yield Role.TEXT, f"Page {page.number} (Total results: {page.total})"
    if page.number > 1:
        yield Role.BUTTON, PREVIOUS
    yield Role.BUTTON, NEXT
    for product in page.results:
        yield Role.LINK, product.asin
        yield Role.TEXT, product.title
        yield Role.TEXT, product.price_tag


def _item(page: Page) -> _Elements:
    product = page.item
    yield from _head(page)
    yield Role.BUTTON, PREVIOUS
    for group, values in product.options.items():
        yield Role.TEXT, group
        for value in values:
            yield Role.OPTION, value
    yield Role.TEXT, product.title
    yield Role.TEXT, f"Price: {product.price_tag}"
    yield Role.TEXT, "Rating: N.A."
    for name in SUB_PAGES if page.show_attributes else SUB_PAGES[:-1]:
        yield Role.BUTTON, name
    yield Role.BUTTON, BUY_NOW


def _sub_page(page: Page) -> _Elements:
    product = page.item
    yield from _head(page)
    yield Role.BUTTON, PREVIOUS
    match page.sub_page:
        case "Description":
            yield Role.TEXT, product.description
        case "Features":
            for line in product.bullets:
                yield Role.TEXT, f" {line}"
        case "Attributes":
            for line in product.attributes:
                yield Role.TEXT, f" {line}"
            for line in (product.category, product.query, product.product_category):
                yield Role.TEXT, line


def _done(page: Page) -> _Elements:
    """Yield the receipt; like the original's, with most fields empty or "None"."""
    chosen = str(htmlsafe_json_dumps(page.chosen, sort_keys=True))
    for words in (
        "Thank you for shopping with us!", "Your code: ", "None",
        " (Paste it in your MTurk interface.)", "Purchased",
        "asin", page.item.asin, "options", chosen, "attrs", "None", "category", "None",
        "query", "None", "product category", "None", "Target", "asin", "options", "attrs",
        "price upper", "instuction text", "category", "product category", "query",
        "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)", str(page.score),
        "Reward Details ", "None",
    ):  # fmt: skip
        yield Role.TEXT, words


_ELEMENTS: Mapping[PageKind, Callable[[Page], _Elements]] = {
    PageKind.INDEX: _index,
    PageKind.RESULTS: _results,
    PageKind.ITEM: _item,
    PageKind.SUB_PAGE: _sub_page,
    PageKind.DONE: _done,
}
