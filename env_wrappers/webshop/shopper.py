"""Scripted customers: an oracle that knows the product, and shoppers that only read pages."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from env_wrappers.errors import DataError
from env_wrappers.webshop.catalogue import Catalogue
from env_wrappers.webshop.pages import (
    BACK_TO_SEARCH,
    BUY_NOW,
    NEXT,
    PAGE_SIZE,
    PREVIOUS,
    SEPARATOR,
    SUB_PAGES,
)
from env_wrappers.webshop.records import Goal, Product
from env_wrappers.webshop.reward import ALIKE_ABOVE, first_color, token_set_ratio
from env_wrappers.webshop.vocabulary import request_words

MAX_PAGES = 3  # maximum results pages that the shopper reads
_FEATURES = SUB_PAGES[1].lower()
_THOUGHT = 5  # words of a page in a thought

_PRICE_LIMIT = re.compile(r",? and price lower than ([\d.]+) dollars\s*$")
_OPTIONS = re.compile(r" with (?=(?:(?! with )[^:,]){1,40}: )")
_WORD = re.compile(r"\w+")
# Common words of instructions, which find no product.
_FILLER = request_words().union(
    ("an", "and", "by", "color", "from", "on", "or", "size", "some", "with")
)


class NotFoundError(DataError):
    """No search with words of the instruction finds the product."""


@dataclass(frozen=True)
class Wish:
    """The parsed content of an instruction.

    Attributes:
        words: the words that describe the product, in order, without repetition.
        options: wanted value by option group, if the instruction lists them as "group: value".
        limit: maximum price in dollars; infinite if the instruction names none.
    """

    words: tuple[str, ...]
    options: Mapping[str, str]
    limit: float


def read_wish(instruction: str) -> Wish:
    """Parse an instruction."""
    text = instruction.lower()
    priced = _PRICE_LIMIT.search(text)
    if priced:
        text = text[: priced.start()]
    thing, *listed = _OPTIONS.split(text, maxsplit=1)
    pairs = (part.split(": ", 1) for part in listed[0].split(", and ")) if listed else ()
    words = (word for word in _WORD.findall(thing) if word not in _FILLER)
    return Wish(
        words=tuple(dict.fromkeys(words)),
        options={pair[0]: pair[1] for pair in pairs if len(pair) == 2},
        limit=float(priced[1]) if priced else float("inf"),
    )


# --- the oracle -----------------------------------------------------------------------------------


def oracle_actions(goal: Goal, product: Product, catalogue: Catalogue) -> list[str]:
    """Return actions that complete a goal, starting on the index page.

    Args:
        goal: the goal.
        product: the product that the goal was made from.
        catalogue: the catalogue to search.

    Raises:
        NotFoundError: no search with words of the instruction finds the product.
    """
    query, place = _best_query(goal, product, catalogue)
    options = _values_for(goal, product)
    return [
        f"search[{query}]",
        *["click[next >]"] * (place // PAGE_SIZE),
        f"click[{product.asin.lower()}]",
        *(f"click[{value}]" for value in options),
        "click[buy now]",
    ]


def _best_query(goal: Goal, product: Product, catalogue: Catalogue) -> tuple[str, int]:
    """Return the first query with the product on page one, or the best one, and its rank there."""
    found: list[tuple[int, str]] = []
    for query in _queries(goal, product):
        hits = list(catalogue.search(query))
        if product.index in hits:
            found.append((hits.index(product.index), query))
            if found[-1][0] < PAGE_SIZE:
                break
    if not found:
        raise NotFoundError(f"no search for words of the instruction finds {product.asin}")
    place, query = min(found)
    return query, place


def _queries(goal: Goal, product: Product) -> list[str]:
    """Return queries: all words of the wish, those in the product's texts, those in its title."""
    words = read_wish(goal.instruction).words
    title = product.title.lower()
    texts = " ".join((title, product.description, *product.bullets[:1])).lower()
    kept = (words, [w for w in words if w in texts], [w for w in words if w in title])
    return list(dict.fromkeys(" ".join(query) for query in kept if query))


def _values_for(goal: Goal, product: Product) -> list[str]:
    """Return the option values to click."""
    if not isinstance(goal.options, tuple):
        return list(goal.options.values())
    offered = [value for values in product.options.values() for value in values]
    likeliest = (
        max(offered, key=lambda value: (value == wanted, _alike(value, wanted)), default="")
        for wanted in goal.options
    )
    pairs = zip(likeliest, goal.options, strict=True)
    return [value for value, wanted in pairs if value and _alike(value, wanted) > ALIKE_ABOVE]


def _alike(value: str, wanted: str) -> int:
    return token_set_ratio(first_color(value) or value, first_color(wanted) or wanted)


# --- the shopper ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Offer:
    """A product on a results page."""

    asin: str  # in lower case, as in clicks
    title: str
    price: float  # lowest price, in dollars


@dataclass(frozen=True)
class Mistakes:
    """Probabilities of a shopper's mistakes.

    Attributes:
        short_query: search for one word of the wish instead of all.
        random_result: open a random result instead of the one that suits best.
        unread_features: do not read the features, although the page lacks a word of the wish.
        no_return: keep a product although its pages show that it is not the wanted one.
        premature_purchase: buy while a wanted option is not chosen yet.
    """

    short_query: float = 0.0
    random_result: float = 0.0
    unread_features: float = 0.0
    no_return: float = 0.0
    premature_purchase: float = 0.0


@dataclass
class Shopper:
    """A customer that uses only the page texts; create a new one for each episode.

    It searches for the words of the wish, and opens the product whose title has most of them. If a
    wanted option is missing, it returns and opens the next. If its page lacks words of the wish,
    it reads the features. If they lack them too, it repeats the search without these words, and
    opens one of the next products. Otherwise it chooses the options and buys.

    Its choices depend on the page and the last two actions, so an agent with a memory of two turns
    can learn them. It remembers more only to omit words from a repeated search, and to give up
    when it has rejected all results; see also `exhaustive`.
    """

    goal: str
    """The instruction."""
    rng: random.Random
    """Source of all random choices."""
    mistakes: Mistakes = Mistakes()
    exhaustive: bool = False
    """Whether to remember all rejected products."""
    _last: str = ""
    _offered: frozenset[str] = frozenset()  # asins on the last results page
    _asin: str = ""  # last product opened
    _chosen: dict[str, str] = field(default_factory=dict)  # value by option group
    _rejected: set[str] = field(default_factory=set)  # asins
    _likeliest: int = 0  # wish words matched by the best title
    _missing: frozenset[str] = frozenset()  # wish words that the product's page lacks
    _checked: bool = False  # the product opened last suits
    _again: bool = False  # the features were not those of the wish, and another product was not
    _settled: bool = False  # nothing fits: accept the best match

    def __post_init__(self) -> None:
        self._wish = read_wish(self.goal)

    def act(
        self, observation: str, admissible: Sequence[str], last: str | None = None
    ) -> tuple[str, str]:
        """Return a short thought and the next action.

        Args:
            observation: the page in the mode "text".
            admissible: the admissible actions of the page.
            last: the previous action; None means the one returned last.
        """
        parts = observation.split(SEPARATOR)
        clicks = {a[len("click[") : -1] for a in admissible if a.startswith("click[")}
        perturbed = last not in (None, self._last)
        clicked = (last if perturbed and last else self._last)[len("click[") : -1]
        if BUY_NOW.lower() in clicks:
            thought, self._last = self._on_item(parts, clicks, clicked)
        elif NEXT.lower() in clicks:
            thought, self._last = self._on_results(parts, clicks, perturbed)
        elif PREVIOUS.lower() in clicks:
            thought, self._last = self._on_sub_page(parts, clicked)
        else:
            thought, self._last = "search", f"search[{self._query()}]"
        return thought, self._last

    def _query(self) -> str:
        words = self._wish.words
        if self._settled and self._offered == frozenset() and words:
            return self.rng.choice(words)  # all words together found nothing
        if self._again:
            words = tuple(word for word in words if word not in self._missing) or words
        elif self._happens(self.mistakes.short_query):
            words = tuple(self.rng.sample(words, min(1, len(words))))
        return " ".join(words)

    def _on_results(self, parts: list[str], clicks: set[str], perturbed: bool) -> tuple[str, str]:
        offers = _offers(parts, clicks)
        if perturbed and (not offers or _page_number(parts) > 1):
            return "not what i wanted", f"click[{BACK_TO_SEARCH.lower()}]"
        self._offered = frozenset(offer.asin for offer in offers)
        suitable = offers if self._settled else [o for o in offers if self._suits(o)]
        if offers and self._happens(self.mistakes.random_result):
            suitable = [self.rng.choice(offers)]
        elif not self._settled and all(offer.asin in self._rejected for offer in suitable):
            if offers and _page_number(parts) < MAX_PAGES:
                return "none of these", f"click[{NEXT.lower()}]"
            suitable = []
        if not suitable:
            self._settled = True
            return "nothing suits", f"click[{BACK_TO_SEARCH.lower()}]"
        best = self._best(suitable)
        self._likeliest = self._shared(best)
        return _brief(best.title), f"click[{best.asin}]"

    def _best(self, suitable: list[Offer]) -> Offer:
        """Return the offer to open next, of those that suit."""
        ranked = sorted(suitable, key=self._shared, reverse=True)
        if self.exhaustive and not self._settled:
            return next(offer for offer in ranked if offer.asin not in self._rejected)
        again, self._again = self._again, False
        if again and len(ranked) > 1:
            likeliest = self._shared(ranked[1])
            return self.rng.choice([o for o in ranked[1:] if self._shared(o) == likeliest])
        if self._last == f"click[{PREVIOUS.lower()}]":
            places = [place for place, o in enumerate(ranked) if o.asin == self._asin]
            return ranked[(places[0] + 1) % len(ranked)] if places else ranked[0]
        return ranked[0]

    def _suits(self, offer: Offer) -> bool:
        alike = 3 * self._shared(offer) >= len(self._wish.words)
        return alike and offer.price <= self._wish.limit

    def _shared(self, offer: Offer) -> int:
        """Return the number of the wish's words in a title."""
        return len(_words(offer.title).intersection(self._wish.words))

    def _on_item(self, parts: list[str], clicks: set[str], clicked: str) -> tuple[str, str]:
        wish, goal = self._wish, self.goal.lower()
        title, groups = _item(parts, clicks)
        if clicked in self._offered:
            self._asin, self._checked = clicked, False
            self._chosen.clear()
        self._chosen.update({group: clicked for group in groups if clicked in groups[group]})
        wanted = {group: _named(group, values, wish, goal) for group, values in groups.items()}
        lacks = any(not wanted.get(group) for group in wish.options) or any(
            not value and f", {group} " in goal for group, value in wanted.items()
        )
        shown = " ".join((title, *groups, *(v for values in groups.values() for v in values)))
        self._missing = frozenset(wish.words) - _words(shown)
        if not (self._settled or self._checked):
            unlike = lacks or len(_words(title).intersection(wish.words)) < self._likeliest
            if unlike and not self._happens(self.mistakes.no_return):
                self._rejected.add(self._asin)
                return "not this one", f"click[{PREVIOUS.lower()}]"
            if self._missing and not self._happens(self.mistakes.unread_features):
                return "look closer", f"click[{_FEATURES}]"
            self._checked = True
        for group, value in wanted.items():
            if value and self._chosen.get(group) != value:
                if self._happens(self.mistakes.premature_purchase):
                    break
                return f"{group} {value}", f"click[{value}]"
        return "buy it", f"click[{BUY_NOW.lower()}]"

    def _on_sub_page(self, parts: list[str], clicked: str) -> tuple[str, str]:
        if clicked != _FEATURES or not self._missing:
            return "back to the product", f"click[{PREVIOUS.lower()}]"
        features = parts[parts.index(PREVIOUS) + 1 :]
        shown = self._missing & _words(" ".join(features))
        # As most of the missing words suffice, the features need not repeat the wish.
        self._checked = 2 * len(shown) > len(self._missing) or self._happens(
            self.mistakes.no_return
        )
        thought = _brief(" ".join(features[:2][-1:])) or "nothing"
        if self._checked:
            return thought, f"click[{PREVIOUS.lower()}]"
        self._rejected.add(self._asin)
        self._again = True
        return thought, f"click[{BACK_TO_SEARCH.lower()}]"

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability


def _brief(text: str) -> str:
    return " ".join(text.lower().split()[:_THOUGHT])


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _named(group: str, values: Sequence[str], wish: Wish, goal: str) -> str:
    """Return the wanted value of a group; empty if there is none or any will do."""
    if wish.options:
        value = wish.options.get(group, "")
        return value if value in values else ""
    for pattern in (rf"\b{re.escape(group)} {{}}(?!\w)", r"(?<!\w){}(?!\w)"):
        named = [v for v in values if re.search(pattern.format(re.escape(v)), goal)]
        if named:
            return max(named, key=len)
    return ""


def _offers(parts: Sequence[str], clicks: set[str]) -> list[Offer]:
    """Return the products on a results page: identifier, title and price."""
    first = parts.index(NEXT) + 1 if NEXT in parts else len(parts)
    places = (i for i in range(first, len(parts) - 2) if parts[i].lower() in clicks)
    return [Offer(parts[i].lower(), parts[i + 1], _lowest_price(parts[i + 2])) for i in places]


def _lowest_price(tag: str) -> float:
    amount = re.search(r"\d+(\.\d+)?", tag)
    return float(amount[0]) if amount else 0.0


def _page_number(parts: Sequence[str]) -> int:
    numbers = (re.match(r"Page (\d+) ", part) for part in parts)
    return next((int(number[1]) for number in numbers if number), 1)


def _item(parts: Sequence[str], clicks: set[str]) -> tuple[str, dict[str, list[str]]]:
    """Return the product's title on an item page, and values by option group."""
    title, groups = "", dict[str, list[str]]()
    first = parts.index(PREVIOUS) + 1 if PREVIOUS in parts else len(parts)
    for part in parts[first:]:
        if part.startswith("Price: "):
            break
        if part in clicks and title:
            groups.setdefault(title, []).append(part)
        else:
            title = part  # or a group's name, if something follows
    return title, groups
