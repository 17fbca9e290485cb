"""Products on disk: a file of records, and memory-mapped arrays.

Records are read on access, so memory use does not grow with the number of products.
"""

import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from env_wrappers.errors import DataError
from env_wrappers.files import parse_json
from env_wrappers.webshop.arrays import save_array
from env_wrappers.webshop.records import Product
from env_wrappers.webshop.source import Listing, Wish

FORMAT = 1
"""Version of the file format; caches of another version are rebuilt."""

NO_WISH = -1

_RECORDS = "records.jsonl"
_OFFSETS = "offsets.npy"
_PRICES = "prices.npy"
_GOALS = "goals.npy"
_HUMAN = "human.npy"
_KEYED = ("asin", "category", "query")
_FIELDS = tuple(field.name for field in fields(Product) if field.name != "index")
_MOST_GOALS = 2**40  # of one product: a bound on counts, so that sums cannot overflow


def write_store(listings: Iterable[Listing], folder: Path) -> dict[str, Any]:
    """Stream products into an empty folder; return facts about them.

    The facts are the number of ``products``, the number that the attributes file lacks
    (``without_attributes``), and the asin of the first of those (``first_without_attributes``).
    """
    offsets = array("q", [0])
    prices, goals, human = array("d"), array("q"), array("q")
    keys = {name: array("Q") for name in _KEYED}
    lacking: list[str] = []
    with (folder / _RECORDS).open("wb") as file:
        for listing in listings:
            product = listing.product
            offsets.append(offsets[-1] + file.write(_encode(listing)))
            prices.extend((*product.prices, math.nan)[:2])
            goals.append(_count_goals(listing))
            human.append(len(listing.human))
            for name in _KEYED:
                keys[name].append(_key(getattr(product, name)))
            if not listing.in_attributes:
                lacking.append(product.asin)
    save_array(folder / _OFFSETS, np.array(offsets))
    save_array(folder / _PRICES, np.array(prices).reshape(-1, 2))
    save_array(folder / _GOALS, np.array(goals))
    save_array(folder / _HUMAN, np.array(human))
    for name in _KEYED:
        _write_lookup(folder, name, np.array(keys[name]))
    return {
        "products": len(goals),
        "without_attributes": len(lacking),
        "first_without_attributes": lacking[0] if lacking else None,
    }


class Store:
    """Products on disk, by index.

    Attributes:
        prices: lower and upper price per product; the upper is NaN if there is only one price.
        goals: number of goals of each product's synthetic wish; ``NO_WISH`` if it has none.
        human: number of human wishes per product.
    """

    def __init__(self, folder: Path) -> None:
        """Map the files that ``write_store`` wrote.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is corrupt.
        """
        self._folder = folder
        self._file = (folder / _RECORDS).open("rb", buffering=0)
        self._offsets = load_array(folder / _OFFSETS)
        self.prices = load_array(folder / _PRICES)
        self.goals = load_array(folder / _GOALS)
        self.human = load_array(folder / _HUMAN)
        self._lookups = {
            name: (load_array(_keys_file(folder, name)), load_array(_order_file(folder, name)))
            for name in _KEYED
        }

    def __len__(self) -> int:
        """Return the number of products."""
        return len(self._offsets) - 1

    def read(self, index: int) -> Listing:
        """Return a product with its wishes.

        Raises:
            DataError: the record can no longer be read.
        """
        start, end = int(self._offsets[index]), int(self._offsets[index + 1])
        try:
            return _decode(index, os.pread(self._file.fileno(), end - start, start))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"{self._folder}: record {index} is damaged; remove the folder to have it built "
                "again"
            ) from error

    def find(self, name: str, text: str) -> np.ndarray:
        """Return the products with this asin, category or query, in catalogue order.

        Texts are compared by 64-bit hashes, so the caller must verify one of the results.
        """
        keys, order = self._lookups[name]
        key = np.uint64(_key(text))
        return order[np.searchsorted(keys, key) : np.searchsorted(keys, key, side="right")]


def load_array(path: Path) -> np.ndarray:
    """Map an array on disk, read-only.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an array.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        if "empty" not in str(error):
            raise
        array = np.load(path, allow_pickle=False)  # an empty file cannot be mapped
    return np.asarray(array)  # slicing an np.memmap is slow


def documents(store: Store) -> Iterator[tuple[str, str]]:
    """Yield each product's asin and searchable text."""
    for index in range(len(store)):
        product = store.read(index).product
        yield product.asin, searchable_text(product)


def searchable_text(product: Product) -> str:
    """Return the text that searches match: title, description, first feature and options."""
    options = ", and ".join(f"{name}: {', '.join(v)}" for name, v in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()


def _count_goals(listing: Listing) -> int:
    if listing.made is None:
        return NO_WISH
    return min(math.prod(map(len, listing.product.options.values())), _MOST_GOALS)


def _write_lookup(folder: Path, name: str, keys: np.ndarray) -> None:
    order = np.argsort(keys, kind="stable")
    save_array(_keys_file(folder, name), keys[order])
    save_array(_order_file(folder, name), order.astype(np.uint32))


def _keys_file(folder: Path, name: str) -> Path:
    return folder / f"{name}-keys.npy"


def _order_file(folder: Path, name: str) -> Path:
    return folder / f"{name}-order.npy"


def _key(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _encode(listing: Listing) -> bytes:
    product = listing.product
    values = [getattr(product, name) for name in _FIELDS]
    made = listing.made and (listing.made.instruction, listing.made.attributes)
    human = [(wish.instruction, wish.attributes, wish.options) for wish in listing.human]
    record = (values, listing.in_attributes, made, human)
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _decode(index: int, line: bytes) -> Listing:
    values, in_attributes, made, human = parse_json(line)
    product = dict(zip(_FIELDS, values, strict=True))
    for name in ("bullets", "prices", "attributes"):
        product[name] = tuple(product[name])
    product["options"] = {name: tuple(v) for name, v in product["options"].items()}
    return Listing(
        product=Product(index=index, **product),
        in_attributes=in_attributes,
        made=made and Wish(made[0], tuple(made[1])),
        human=tuple(Wish(text, tuple(a), tuple(options)) for text, a, options in human),
    )
