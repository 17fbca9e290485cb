"""Score a purchase by how well product, options and price match the goal."""

import functools
import re
from collections.abc import Container, Mapping, Sequence
from difflib import SequenceMatcher

from env_wrappers.webshop.nouns import NounExtractor
from env_wrappers.webshop.records import Goal, Product

ALIKE_ABOVE = 85  # fuzzy ratio, out of 100
# In alphabetical order, which decides which one is found first.
_COLOR_WORDS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
    burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee
    cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia
    gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender
    lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red
    rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower
    tan taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLORS = tuple(_COLOR_WORDS.split())
_LATIN_1_SUPPLEMENT = re.compile("[\u0080-\u00ff]")
_NOT_IN_WORDS = re.compile(r"\W")
_TEXTS = 1 << 14  # cached texts: some megabytes
_PAIRS = 1 << 16  # cached pairs: about 20 megabytes

ScoreDetails = dict[str, float | bool | str]
"""The parts of a score; see :func:`score`."""


def score(
    product: Product,
    chosen: Mapping[str, str],
    price: float,
    goal: Goal,
    goal_product: Product,
    nouns: NounExtractor,
) -> tuple[float, ScoreDetails]:
    """Score the purchase of `product` exactly as the original does, including its quirks.

    Args:
        product: the product bought.
        chosen: option group to the value clicked.
        price: price of the product in this store, in dollars.
        goal: the goal.
        goal_product: the product that the goal was made from.
        nouns: extracts the nouns of titles.

    Returns:
        The score, from 0 to 1, which is ``r_type`` times the fraction of the goal's attributes,
        options and price limit that are met; and its parts, with the original's keys:

        - ``r_type``: 1, 0.5, 0.1 or 0: how well the kind of product matches.
        - ``r_att``: fraction of the goal's attributes that the product has; 0 if it has none.
        - ``w_att``, ``w_option``, ``w_price``: weights of attributes, options and price.
        - ``query_match``: whether both products were collected with the same query.
        - ``category_match``: whether two parts of their category paths are equal.
        - ``title_score``: fraction of the nouns in the wanted title that the product's has.
        - ``r_option``: fraction of the goal's options that were chosen. As in the original,
          ``r_option`` and ``w_option`` are missing if the goal has no options.
        - ``r_price``: whether the price is within the limit.
        - ``noun_extractor``: name of `nouns`; scores of different ones are not comparable.
    """
    wanted = _wanted_options(goal)
    parts = len(goal.attributes) + len(wanted) + 1
    attributes = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    names = [_normalized(value) for value in chosen.values()]
    options = sum(any(_alike(name, option) for name in names) for option in wanted)
    within_limit = price <= goal.price_limit
    query_match = product.query == goal_product.query
    shared = _categories(product.product_category) & _categories(goal_product.product_category)
    category_match = len(shared) >= 2
    title_score = _title_score(nouns.find(product.title), nouns.find(goal_product.title))
    r_type = _type_score(query_match or category_match, title_score)
    option_score = (
        {"r_option": options / len(wanted), "w_option": len(wanted) / parts} if wanted else {}
    )
    return (attributes + options + within_limit) / parts * r_type, {
        "r_type": r_type,
        "r_att": attributes / len(goal.attributes) if goal.attributes else 0.0,
        "w_att": len(goal.attributes) / parts,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
        **option_score,
        "r_price": within_limit,
        "w_price": 1 / parts,
        "noun_extractor": nouns.name,
    }


def _type_score(related: bool, title_score: float) -> float:
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if related or title_score > 0.2 else 0.5


def _title_score(nouns: Sequence[str], wanted: Sequence[str]) -> float:
    """Score nouns; repeated wanted nouns all count in the denominator, once in the numerator."""
    return len(set(nouns) & set(wanted)) / len(wanted) if wanted else 0.2


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


def _has_attribute(product: Product, attribute: str) -> bool:
    return any(_alike(own, attribute) for own in product.attributes) or any(
        attribute in text.lower()
        for text in (product.title, " ".join(product.bullets), product.description)
    )


def _wanted_options(goal: Goal) -> tuple[str, ...]:
    """Return the goal's options as they are compared with the chosen values.

    The original stores those of synthetic goals as pairs of group and value. It searches the pair,
    not its strings, for colors, and then compares the pair as Python prints it, so the group name
    counts as one more word of the wanted value.
    """
    if isinstance(goal.options, tuple):
        return tuple(map(_normalized, goal.options))
    return tuple(first_color(pair) or str(pair) for pair in goal.options.items())


def first_color(option: Container[str]) -> str | None:
    """Return the first color word contained in `option`, or None.

    In a string, substrings count ("red" is in "powdered"); in a tuple of strings, an element must
    equal the word.
    """
    return next((color for color in COLORS if color in option), None)


def _normalized(value: str) -> str:
    return first_color(value) or value


def _alike(own: str, wanted: str) -> bool:
    return token_set_ratio(own, wanted) > ALIKE_ABOVE


@functools.lru_cache(maxsize=_PAIRS)
def token_set_ratio(first: str, second: str) -> int:
    """Compare two texts as sets of words, ignoring case, order and repetition.

    The original uses thefuzz 0.19 without its C extension, whose ratio is that of difflib. Faster
    libraries define the ratio slightly differently, which changes single options.

    Letters of the Latin-1 supplement ("é") are removed; punctuation separates words. The result is
    100 if one text contains all words of the other, and 0 if a text has no words, even if both are
    equal. Swapping the arguments can change it by a few points, as with difflib's ratio.

    Returns:
        An integer from 0 to 100.
    """
    words, others = _words(first), _words(second)
    if not words or not others:
        return 0
    common = _line(words & others)
    whole = f"{common} {_line(words - others)}".strip()
    other_whole = f"{common} {_line(others - words)}".strip()
    return max(_ratio(common, whole), _ratio(common, other_whole), _ratio(whole, other_whole))


@functools.lru_cache(maxsize=_TEXTS)
def _words(text: str) -> frozenset[str]:
    # Remove punctuation before lower(): the lower case of "İ" contains a mark that must stay.
    plain = _NOT_IN_WORDS.sub(" ", _LATIN_1_SUPPLEMENT.sub("", text))
    return frozenset(plain.lower().split())


def _line(words: frozenset[str]) -> str:
    return " ".join(sorted(words))


def _ratio(first: str, second: str) -> int:
    if first == second:  # the common case; the matcher gives the same result slowly
        return 100
    return round(100 * SequenceMatcher(None, first, second).ratio())
