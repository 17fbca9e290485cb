"""State shared by all sessions of a process: products, goals, prices, search and scoring."""

import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from env_wrappers.errors import DataError
from env_wrappers.webshop.catalogue import MAX_HITS, Catalogue, open_catalogue
from env_wrappers.webshop.goals import GoalKind, GoalList, check_goals, open_goals
from env_wrappers.webshop.nouns import NounExtractor, make_noun_extractor
from env_wrappers.webshop.records import Goal, Product
from env_wrappers.webshop.reward import ScoreDetails, score
from env_wrappers.webshop.source import find_sources


@dataclass(frozen=True, slots=True, eq=False)
class Shop:
    """A store and its goals, immutable while sessions run.

    Attributes:
        catalogue: the products.
        goals: the goals and the prices of the products.
        nouns: noun extractor of the score.
        opened_with: the arguments of ``open_shop``, with the resolved data directory.
    """

    catalogue: Catalogue
    goals: GoalList
    nouns: NounExtractor
    opened_with: tuple[Any, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the shop itself, which is immutable."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call that opens the shop again, because its data is memory-mapped."""
        return _open_again, (self.catalogue.facts["data_hash"], self.nouns.name, *self.opened_with)

    def find(self, keywords: Sequence[str], rng: random.Random) -> Sequence[int] | None:
        """Return the products that a search finds, as indices in display order.

        The first keyword can be a command: ``<r>`` returns products drawn with ``rng``, ``<c>`` a
        department, ``<q>`` the products of a query. None is returned where the original crashes
        (``<a>``, or ``<c>`` without a department).
        """
        match keywords:
            case ["<r>", *_]:
                count = len(self.catalogue)
                return rng.sample(range(count), min(MAX_HITS, count))
            case ["<a>", *_] | ["<c>"]:
                return None
            case ["<c>", department, *_]:
                return self.catalogue.find("category", department.strip())
            case ["<q>", *words]:
                return self.catalogue.find("query", " ".join(words).strip())
        return self.catalogue.search(" ".join(keywords))

    def score(
        self, product: Product, chosen: Mapping[str, str], goal: Goal
    ) -> tuple[float, ScoreDetails]:
        """Score the purchase of a product with the chosen options; see ``reward.score``."""
        price = float(self.goals.prices[product.index])
        wanted = self.catalogue[goal.product]
        return score(product, chosen, price, goal, wanted, self.nouns)


def open_shop(
    data: str | Path | None = None,
    goals: GoalKind = "synthetic",
    num_products: int | None = None,
    price_seed: int = 0,
    shuffle_seed: int = 233,
    nouns: str = "auto",
) -> Shop:
    """Open a store; one object per process for the same data and settings.

    Args:
        data: directory of the product files; None uses ``$WEBSHOP_DATA``.
        goals: made from product attributes ("synthetic") or written by people ("human").
        num_products: use only the first `num_products` records; None uses all.
        price_seed: seed for prices within a range and for the price limits of goals.
        shuffle_seed: seed for the order of the goals; 233 gives the canonical order.
        nouns: noun extractor; see ``nouns.make_noun_extractor``.

    Raises:
        DataError: the data is unusable, or an argument is unknown or out of range.
    """
    # Check cheap arguments first: building a large catalogue takes long.
    extractor = make_noun_extractor(nouns)
    check_goals(goals, price_seed, shuffle_seed)
    folder = find_sources(data).folder
    settings = (folder, goals, num_products, price_seed, shuffle_seed, nouns)
    with _opening:
        catalogue = open_catalogue(folder, num_products)
        shop = _shops.get((catalogue, *settings))
        if shop is None:
            drawn = open_goals(catalogue, goals, price_seed, shuffle_seed)
            shop = _shops[catalogue, *settings] = Shop(catalogue, drawn, extractor, settings)
        return shop


_opening = threading.Lock()  # two threads that open the same shop get the same object
_shops: dict[tuple[Any, ...], Shop] = {}


def _open_again(data_hash: str, noun_extractor: str, data: Path, *settings: Any) -> Shop:
    """Open a pickled shop; raise DataError if it cannot be opened here, or would differ."""
    shop = open_shop(data, *settings)
    if (shop.catalogue.facts["data_hash"], shop.nouns.name) != (data_hash, noun_extractor):
        raise DataError(
            f"{data} is not the store that was pickled: its files, or the noun extractor "
            f"({noun_extractor!r} then, {shop.nouns.name!r} now), have changed"
        )
    return shop
