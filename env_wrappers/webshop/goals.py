"""Goals in canonical order, with price limits drawn from explicit seeds.

The original keeps all goals in memory and draws from Python's global random state. Here the same
draws are made once and stored on disk as arrays, and goals are created on access. The same seeds
give the same goals in every process, equal to the original's with those seeds.
"""

import functools
import random
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from env_wrappers.errors import DataError
from env_wrappers.webshop.cache import ensure_folder, load_array, save_array
from env_wrappers.webshop.catalogue import Catalogue
from env_wrappers.webshop.records import Goal
from env_wrappers.webshop.source import HUMAN
from env_wrappers.webshop.store import NO_WISH

Kind = Literal["synthetic", "human"]

NO_LIMIT = 1_000_000.0
"""Price limit in dollars of a goal without one."""

SPLITS: dict[str, tuple[int, int | None]] = {
    "test": (0, 500),
    "dev": (500, 1_500),
    "train": (1_500, None),
    "released_train": (500, None),
    "released_eval": (0, 500),
}
"""Start and stop of each split in the shuffled order; None is the end.

The first three are WebShop's own and are disjoint. The "released" ones were used to train and
evaluate released agents and are also disjoint.
"""
PRODUCT_SPLITS = {"test_products": (0, 1), "dev_products": (1, 2), "train_products": (2, 10)}
"""Start and stop of each split by product in the last decimal digit of the hash of the asin.

They share no product, and a product is in the same split in every store, for all kinds of goals.
"""

_SEEDS = range(-(2**63), 2**63)
_LIMITS = tuple(10.0 * tens for tens in range(1, 100))
_CHOICES = 4  # a limit is drawn from this many values above the price
_MOST_GOALS = 500_000_000  # take 2 GB while shuffled
_ARRAYS = ("prices", "limits", "products", "starts", "order")

_Arrays = dict[str, np.ndarray]


class GoalList:
    """The goals of a catalogue in shuffled order, created on access."""

    def __init__(self, catalogue: Catalogue, kind: Kind, arrays: _Arrays) -> None:
        """Initialize from arrays; use :func:`open_goals` instead.

        Args:
            catalogue: the products.
            kind: the kind of goals.
            arrays: ``prices`` per product; per wish, in the order of products: ``limits``,
                ``products`` and ``starts``, the index of its first goal before shuffling;
                ``order``, the shuffled goal indices.
        """
        self._catalogue = catalogue
        self._kind = kind
        self._prices = arrays["prices"]
        self._limits = arrays["limits"]
        self._products = arrays["products"]
        self._starts = arrays["starts"]
        self._order = arrays["order"]

    def __len__(self) -> int:
        """Return the number of goals."""
        return len(self._order)

    def __getitem__(self, index: int) -> Goal:
        """Return a goal by its index, which may be negative.

        Raises:
            IndexError: ``index`` is out of range.
        """
        try:
            place = range(len(self))[index]
        except IndexError:
            raise IndexError(f"no goal {index}: there are {len(self)} (0 is the first)") from None
        number = int(self._order[place])
        wish = int(np.searchsorted(self._starts, number, side="right")) - 1
        product, limit = int(self._products[wish]), float(self._limits[wish])
        listing = self._catalogue.listing(product)
        options: Mapping[str, str] | tuple[str, ...]
        if self._kind == "human":
            source = listing.human[wish - int(np.searchsorted(self._products, product))]
            text, options = source.instruction.strip("."), source.options
        else:
            assert listing.made is not None
            source = listing.made
            options = _combination(listing.product.options, number - int(self._starts[wish]))
            chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text = f"{source.instruction} with {chosen}" if chosen else source.instruction
        if limit != NO_LIMIT:
            text += f", and price lower than {limit:.2f} dollars"
        return Goal(place, product, text, source.attributes, limit, options)

    def of_products(self, start: int, stop: int) -> Sequence[int]:
        """Return the indices, ascending, of the goals of a share of the products.

        Args:
            start, stop: range of the last decimal digit of the hash of a product's asin.
        """
        digits = self._catalogue.store.asins[self._products] % 10
        sizes = np.diff(self._starts, append=len(self))
        chosen = np.repeat((start <= digits) & (digits < stop), sizes)[self._order]
        return array("I", np.flatnonzero(chosen).astype(np.uint32).tobytes())

    def price(self, product_index: int) -> float:
        """Return a product's price in dollars, which is drawn if the product has a range."""
        return float(self._prices[product_index])


def open_goals(
    catalogue: Catalogue, kind: Kind, price_seed: int, shuffle_seed: int = 233
) -> GoalList:
    """Return the goals of a catalogue; draws are made once and stored in the catalogue's folder.

    Args:
        catalogue: the products.
        kind: "synthetic" (made from attributes and options) or "human" (written by people).
        price_seed: seed for prices within a range, then for price limits.
        shuffle_seed: seed for the order of the goals; 233 gives the canonical order.

    Raises:
        DataError: an argument is unknown or out of range, or the catalogue has no such goals.
    """
    check_goals(kind, price_seed, shuffle_seed)
    if kind == "synthetic":
        _check_attributes(catalogue)

    def build(folder: Path) -> None:
        for name, values in _draw(catalogue, kind, price_seed, shuffle_seed).items():
            save_array(folder / f"{name}.npy", values)

    folder = catalogue.folder / "goals" / f"{kind}-prices{price_seed}-order{shuffle_seed}"
    try:
        ensure_folder(folder, build)
        arrays = {name: load_array(folder / f"{name}.npy") for name in _ARRAYS}
    except (OSError, ValueError):  # not writable, or damaged: this process makes its own draws
        arrays = _draw(catalogue, kind, price_seed, shuffle_seed)
    return GoalList(catalogue, kind, arrays)


def check_goals(kind: str, price_seed: int, shuffle_seed: int) -> None:
    """Raise DataError for invalid arguments of `open_goals`."""
    if kind not in get_args(Kind):
        raise DataError(f"unknown kind of goals {kind!r}: choose {' or '.join(get_args(Kind))}")
    for name, seed in (("price_seed", price_seed), ("shuffle_seed", shuffle_seed)):
        # Both seeds are part of a folder name.
        if type(seed) is not int or seed not in _SEEDS:
            raise DataError(f"{name} must be a whole number of at most 64 bits, not {seed!r}")


@functools.cache  # one list for all environments of a process
def split_goals(goals: GoalList, split: str) -> Sequence[int]:
    """Return the indices of a split's goals, ascending.

    Raises:
        DataError: the split is unknown or empty.
    """
    places: Sequence[int]
    if split in SPLITS:
        start, stop = SPLITS[split]
        places = range(len(goals))[start:stop]
        reason = f"it starts at goal {start}, and there are {len(goals)}"
    elif split in PRODUCT_SPLITS:
        places = goals.of_products(*PRODUCT_SPLITS[split])
        reason = f"none of the {len(goals)} goals is of its products"
    else:
        known = ", ".join((*SPLITS, *PRODUCT_SPLITS))
        raise DataError(f"unknown split {split!r}: choose from {known}")
    if not places:
        raise DataError(f"split {split!r} is empty: {reason}; take another split or more products")
    return places


def _check_attributes(catalogue: Catalogue) -> None:
    """Refuse data on which the original crashes, a sign of files that do not match."""
    lacking = catalogue.facts["without_attributes"]
    if lacking:
        products, attributes, *_ = catalogue.facts["files"]
        raise DataError(
            f"{lacking} of {len(catalogue)} products in {products} have no entry in {attributes}, "
            f"the first is {catalogue.facts['first_without_attributes']}: take files that belong "
            "together, or human goals"
        )


def _draw(catalogue: Catalogue, kind: Kind, price_seed: int, shuffle_seed: int) -> _Arrays:
    """Make all random draws, in the original's order."""
    products, sizes = _wishes(catalogue, kind)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    count = int(starts[-1])
    if not 0 < count <= _MOST_GOALS:
        raise _wrong_count(catalogue, kind, count)
    rng = random.Random(price_seed)
    prices = _draw_prices(catalogue, rng)  # all prices are drawn before the first limit
    limits = [_draw_limit(price, rng) for price in prices[products].tolist()]
    order = array("I", range(count))  # shuffled like the original's list of goals
    random.Random(shuffle_seed).shuffle(order)
    return {
        "prices": prices,
        "limits": np.array(limits),
        "products": products,
        "starts": starts[:-1],
        "order": np.frombuffer(order, dtype=np.uint32),
    }


def _wishes(catalogue: Catalogue, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Return the product of each wish, and its number of goals."""
    if kind == "human":
        per_product = catalogue.store.human
        products = np.repeat(np.arange(len(per_product)), per_product)
        return products, np.ones(len(products), dtype=np.int64)
    products = np.flatnonzero(catalogue.store.goals != NO_WISH)
    return products, catalogue.store.goals[products]


def _wrong_count(catalogue: Catalogue, kind: Kind, count: int) -> DataError:
    if count:
        return DataError(
            f"{count} {kind} goals are too many (at most {_MOST_GOALS}): take fewer products, or "
            "human goals"
        )
    if kind == "human":
        return DataError(
            f"no human goal for any of the {len(catalogue)} products: put a {HUMAN} with "
            "instructions for them beside the products, or take synthetic goals"
        )
    return DataError(
        f"no synthetic goal for any of the {len(catalogue)} products: "
        f'{catalogue.facts["files"][1]} has no "instruction" for them; take human goals'
    )


def _draw_prices(catalogue: Catalogue, rng: random.Random) -> np.ndarray:
    lower, upper = catalogue.store.lower, catalogue.store.upper
    prices = lower.copy()
    for index in np.flatnonzero(~np.isnan(upper)).tolist():
        prices[index] = rng.uniform(float(lower[index]), float(upper[index]))
    return prices


def _draw_limit(price: float, rng: random.Random) -> float:
    """Return the larger of two multiples of ten dollars drawn from those just above a price."""
    above = bisect_right(_LIMITS, price)
    choices = _LIMITS[above : above + _CHOICES]
    return max(rng.sample(choices, 2)) if len(choices) >= 2 else NO_LIMIT


def _combination(options: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """Return one value per option group, groups sorted; the last group varies fastest."""
    names = sorted(options)
    chosen = {}
    for name in reversed(names):
        number, place = divmod(number, len(options[name]))
        chosen[name] = options[name][place]
    return {name: chosen[name] for name in names}
