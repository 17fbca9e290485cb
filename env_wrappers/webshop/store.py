"""Products on disk: a file of records, and columns that are mapped into memory.

Records are read on access, so memory use does not grow with the number of products.
"""

import math
import os
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from env_wrappers.errors import DataError
from env_wrappers.webshop.cache import load_array, save_array
from env_wrappers.webshop.records import Listing, Product

NO_WISH = -1

_RECORDS = "records.jsonl"
_COLUMNS = np.dtype(
    [
        ("end", np.int64),  # of the record, in the file of records
        ("lower", np.float64),  # price
        ("upper", np.float64),
        ("goals", np.int64),
        ("human", np.int64),
        ("asin", np.uint64),  # these three as hashes
        ("category", np.uint64),
        ("query", np.uint64),
    ]
)
_MOST_GOALS = 2**40  # of one product: a bound on counts, so that sums cannot overflow
_listings = TypeAdapter(Listing)


def write_store(listings: Iterable[Listing], folder: Path) -> dict[str, Any]:
    """Stream products into an empty folder; return facts about them.

    The facts are the number of ``products``, the number that the attributes file lacks
    (``without_attributes``), and the asin of the first of those (``first_without_attributes``).
    """
    lacking: list[str] = []

    def rows() -> Iterator[tuple[Any, ...]]:
        with (folder / _RECORDS).open("wb") as file:
            end = 0
            for listing in listings:
                product = listing.product
                end += file.write(_listings.dump_json(listing) + b"\n")
                if not listing.in_attributes:
                    lacking.append(product.asin)
                yield (
                    *(end, *(*product.prices, math.nan)[:2]),
                    *(_count_goals(listing), len(listing.human)),
                    *map(_key, (product.asin, product.category, product.query)),
                )

    table = np.fromiter(rows(), _COLUMNS)
    for name in _COLUMNS.names or ():
        save_array(folder / f"{name}.npy", table[name])
    return {
        "products": len(table),
        "without_attributes": len(lacking),
        "first_without_attributes": lacking[0] if lacking else None,
    }


class Store:
    """Products on disk, by index.

    Attributes:
        lower, upper: prices per product; the upper is NaN if there is only one price.
        goals: number of goals of each product's synthetic wish; ``NO_WISH`` if it has none.
        human: number of human wishes per product.
        asins: 64-bit hash of each product's asin.
    """

    def __init__(self, folder: Path) -> None:
        """Map the files that ``write_store`` wrote.

        Raises:
            OSError, ValueError: a file is missing or damaged.
        """
        self._folder = folder
        self._file = (folder / _RECORDS).open("rb", buffering=0)
        self._columns = {n: load_array(folder / f"{n}.npy") for n in _COLUMNS.names or ()}
        self._ends = self._columns["end"]
        self.lower, self.upper = self._columns["lower"], self._columns["upper"]
        self.goals, self.human = self._columns["goals"], self._columns["human"]
        self.asins = self._columns["asin"]

    def __len__(self) -> int:
        """Return the number of products."""
        return len(self._ends)

    def read(self, index: int) -> Listing:
        """Return a product with its wishes.

        Raises:
            DataError: the record can no longer be read.
        """
        start, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        try:
            return _listings.validate_json(os.pread(self._file.fileno(), end - start, start))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self._folder}: record {index} is damaged; remove the folder to have it built "
                "again"
            ) from error

    def find(self, name: str, text: str) -> np.ndarray:
        """Return the products with this asin, category or query, in catalogue order.

        Texts are compared by 64-bit hashes, so the caller must verify one of the results.
        """
        return np.flatnonzero(self._columns[name] == np.uint64(_key(text)))


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


def _key(text: str) -> int:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
