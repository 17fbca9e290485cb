"""Goals in canonical order, with price limits drawn from explicit seeds.

The original keeps all goals in memory and draws from Python's global random state. Here the same
draws are made once and stored on disk as arrays, and goals are created on access. The same seeds
give the same goals in every process, equal to the original's with those seeds.
"""

import functools
import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from env_wrappers.errors import DataError, check_known
from env_wrappers.webshop.cache import ensure_folder, load_array, save_array
from env_wrappers.webshop.catalogue import NOT_IN_ATTRIBUTES, Catalogue
from env_wrappers.webshop.records import Goal
from env_wrappers.webshop.source import HUMAN

GoalKind = Literal["synthetic", "human"]

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


@dataclass(frozen=True, eq=False)
class GoalList:
    """The goals of a catalogue in shuffled order, created on access; see :func:`open_goals`.

    Attributes:
        catalogue: the products.
        kind: the kind of goals.
        prices: price of each product in dollars, which is drawn if the product has a range.
        limits, products, starts: price limit and product of each instruction, in the order of
            products, and index of its first goal before shuffling.
        order: the shuffled goal indices.
    """

    catalogue: Catalogue
    kind: GoalKind
    prices: np.ndarray
    limits: np.ndarray
    products: np.ndarray
    starts: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        """Return the number of goals."""
        return len(self.order)

    def __getitem__(self, index: int) -> Goal:
        """Return a goal; raise IndexError if there is none."""
        place = range(len(self))[index]
        number = int(self.order[place])
        row = int(np.searchsorted(self.starts, number, side="right")) - 1
        product, limit = int(self.products[row]), float(self.limits[row])
        listing = self.catalogue.listing(product)
        options: Mapping[str, str] | tuple[str, ...]
        if self.kind == "human":
            source = listing.human[row - int(np.searchsorted(self.products, product))]
            text, options = source.text.strip("."), source.options
        else:
            assert listing.synthetic is not None
            source = listing.synthetic
            options = _combination(listing.product.options, number - int(self.starts[row]))
            chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
            text = f"{source.text} with {chosen}" if chosen else source.text
        if limit != NO_LIMIT:
            text += f", and price lower than {limit:.2f} dollars"
        return Goal(place, product, text, source.attributes, limit, options)

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """Weight of each goal when the original draws one; the first use reads all products.

        It is 1 for a human goal, and for a synthetic one the mean over its attributes of 1 / the
        number of goals with the attribute.
        """
        if self.kind == "human":
            return np.ones(len(self))
        sizes = np.diff(self.starts, append=len(self))  # goals of each instruction
        # An option group without values gives none.
        starts, sizes = self.starts[sizes > 0], sizes[sizes > 0]
        found = [self[index].attributes for index in np.argsort(self.order)[starts]]
        counts = Counter[str]()
        for attributes, size in zip(found, sizes.tolist(), strict=True):
            counts.update(dict.fromkeys(attributes, size))
        means = [np.mean([1 / counts[name] for name in attributes]) for attributes in found]
        return np.repeat(means, sizes)[self.order]


def open_goals(
    catalogue: Catalogue, kind: GoalKind, price_seed: int, shuffle_seed: int = 233
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
    return GoalList(catalogue, kind, **arrays)


def check_goals(kind: str, price_seed: int, shuffle_seed: int) -> None:
    """Raise DataError for invalid arguments of `open_goals`."""
    check_known("kind of goals", kind, get_args(GoalKind))
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
    check_known("split", split, (*SPLITS, *PRODUCT_SPLITS))
    if split in SPLITS:
        start, stop = SPLITS[split]
        places = range(len(goals))[start:stop]
        reason = f"it starts at goal {start}, and there are {len(goals)}"
    else:
        start, stop = PRODUCT_SPLITS[split]
        digits = goals.catalogue.columns["asin"][goals.products] % 10
        sizes = np.diff(goals.starts, append=len(goals))
        chosen = np.repeat((start <= digits) & (digits < stop), sizes)[goals.order]
        places = np.flatnonzero(chosen).data
        reason = f"none of the {len(goals)} goals is of its products"
    if not places:
        raise DataError(f"split {split!r} is empty: {reason}; take another split or more products")
    return places


def _check_attributes(catalogue: Catalogue) -> None:
    """Refuse data on which the original crashes, a sign of files that do not match."""
    lacking = np.flatnonzero(catalogue.columns["goals"] == NOT_IN_ATTRIBUTES)
    if len(lacking):
        products, attributes, *_ = catalogue.facts["files"]
        raise DataError(
            f"{len(lacking)} of {len(catalogue)} products in {products} have no entry in "
            f"{attributes}, the first is {catalogue[lacking[0]].asin}: take files that belong "
            "together, or human goals"
        )


def _draw(
    catalogue: Catalogue, kind: GoalKind, price_seed: int, shuffle_seed: int
) -> dict[str, np.ndarray]:
    """Make all random draws, in the original's order."""
    columns = catalogue.columns
    if kind == "human":
        products = np.repeat(np.arange(len(catalogue)), columns["human"])
        sizes = np.ones_like(products)
    else:
        products = np.flatnonzero(columns["goals"] >= 0)
        sizes = columns["goals"][products]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    count = int(starts[-1])
    if not 0 < count <= _MOST_GOALS:
        raise _wrong_count(catalogue, kind, count)
    rng = random.Random(price_seed)
    lower, upper = columns["lower"], columns["upper"]
    prices = lower.copy()  # all prices are drawn before the first limit
    for index in np.flatnonzero(~np.isnan(upper)):
        prices[index] = rng.uniform(lower[index], upper[index])
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


def _wrong_count(catalogue: Catalogue, kind: GoalKind, count: int) -> DataError:
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


def _draw_limit(price: float, rng: random.Random) -> float:
    """Return the larger of two multiples of ten dollars drawn from those just above a price."""
    above = bisect_right(_LIMITS, price)
    choices = _LIMITS[above : above + _CHOICES]
    return max(rng.sample(choices, 2)) if len(choices) >= 2 else NO_LIMIT


def _combination(options: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """Return one value per option group, groups sorted; the last group varies fastest."""
    names = sorted(options)
    places = np.unravel_index(number, tuple(len(options[name]) for name in names))
    return {name: options[name][int(place)] for name, place in zip(names, places, strict=True)}
