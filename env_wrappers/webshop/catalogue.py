"""A read-only catalogue of all products of a store, shared within a process, with search.

Data derived from the files is built once and cached on disk (see ``cache.py``): records, which are
read on access, and columns and a search index, which are mapped into memory. So memory use does not
grow with the number of products, and opening it again does not read the original data.
"""

import functools
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from env_wrappers.errors import DataError
from env_wrappers.files import read_json
from env_wrappers.webshop.bm25 import Index, build_index, text_hashes
from env_wrappers.webshop.cache import (
    FORMAT,
    cache_roots,
    content_hash,
    ensure_folder,
    load_array,
    save_array,
)
from env_wrappers.webshop.records import Listing, Product
from env_wrappers.webshop.source import Sources, find_sources, read_listings

NO_INSTRUCTION, NOT_IN_ATTRIBUTES = -1, -2
"""Values of the column "goals" of products without synthetic goals: the attributes file has no
instruction for them, or lacks them."""

_FACTS, _RECORDS, _SEARCH = "facts.json", "records.jsonl", "search"
_COLUMNS = np.dtype(
    [
        ("end", np.int64),  # of the record, in the file of records
        ("lower", np.float64),  # price
        ("upper", np.float64),  # price, or NaN if there is only one
        ("goals", np.int64),  # number of synthetic goals
        ("human", np.int64),  # number of human goals
        ("asin", np.uint64),  # these three as hashes
        ("category", np.uint64),
        ("query", np.uint64),
    ]
)
MAX_HITS = 50
"""Maximum number of products that a search for words finds."""
_MOST_GOALS = 2**40  # of one product: a bound on counts, so that sums cannot overflow
_CACHED_LISTINGS = 4_096  # about 5 KB each
_CACHED_SEARCHES = 8_192  # about 2 KB each
_LONGEST_CACHED_QUERY = 1_000
_listings = TypeAdapter(Listing)


class Catalogue:
    """The products of a store, as a sequence.

    Attributes:
        folder: the folder of the derived data.
        facts: from the build: ``data_hash``, the hash of the data files' contents and of the
            requested number of products; number of records ``skipped``, by reason ("nan", "long",
            "duplicate"); names of the data ``files``.
        columns: per product, prices (``lower`` and ``upper``, which is NaN if there is only one),
            number of synthetic (``goals``) and ``human`` goals, and 64-bit hashes of ``asin``,
            ``category`` and ``query``.
        listing: returns a product with its instructions, by index; raises DataError if it can no
            longer be read.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files of a folder; use :func:`open_catalogue` instead.

        Raises:
            OSError, ValueError: the files cannot be read.
        """
        self.folder = folder
        self.facts: dict[str, Any] = read_json(folder / _FACTS)
        self.columns = {n: load_array(folder / f"{n}.npy") for n in _COLUMNS.names or ()}
        self._records = (folder / _RECORDS).open("rb", buffering=0)
        self._index = Index(folder / _SEARCH)
        self.listing = functools.lru_cache(_CACHED_LISTINGS)(self._read)
        self._search = functools.lru_cache(_CACHED_SEARCHES)(self._index.search)

    def __len__(self) -> int:
        """Return the number of products."""
        return len(self.columns["end"])

    def __iter__(self) -> Iterator[Product]:
        """Yield all products in order."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Product:
        """Return a product."""
        return self.listing(index).product

    def find(self, column: str, text: str) -> Sequence[int]:
        """Return the indices, ascending, of the products with this "asin", "category" or "query".

        Two texts are mistaken for each other with a probability of 1 in 2**64.
        """
        return np.flatnonzero(self.columns[column] == text_hashes([text])).data

    def search(self, query: str) -> tuple[int, ...]:
        """Return the indices of the `MAX_HITS` products that best match a query, best first."""
        search = self._search if len(query) <= _LONGEST_CACHED_QUERY else self._index.search
        return search(query, MAX_HITS)

    def _read(self, index: int) -> Listing:
        ends = self.columns["end"]
        start, end = int(ends[index - 1]) if index else 0, int(ends[index])
        try:
            return _listings.validate_json(os.pread(self._records.fileno(), end - start, start))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.folder}: record {index} is damaged; remove the folder to have it built "
                "again"
            ) from error


def open_catalogue(data: str | Path | None = None, num_products: int | None = None) -> Catalogue:
    """Open the catalogue of a data directory; one shared object per process and content.

    The first call builds it (seconds for a thousand products, many minutes for a million) and
    caches it beside the data, or in the user's cache if that directory is not writable.
    Concurrent processes wait for one to build it.

    Args:
        data: directory of the product files; None uses ``$WEBSHOP_DATA``.
        num_products: use only the first `num_products` records; None uses all.

    Raises:
        DataError: the data is unusable, or the derived data cannot be written anywhere.
    """
    if num_products is not None and (type(num_products) is not int or num_products < 1):
        raise DataError(f"num_products must be at least 1, or None, not {num_products!r}")
    sources = find_sources(data)
    roots = cache_roots(sources.folder)
    data_hash = _hash(sources, roots, num_products)
    name = f"{data_hash[:32]}-v{FORMAT}"

    def build(folder: Path) -> None:
        facts = _build(folder, sources, num_products) | {"data_hash": data_hash}
        if _hash(sources, roots, num_products) != data_hash:
            raise DataError(f"{sources.folder}: the data changed while it was read; try again")
        (folder / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")

    reasons = []
    for root in roots:
        try:
            ensure_folder(root / name, build)
            return _open(root / name)
        except OSError as error:
            reasons.append(f"{root} ({error.strerror or error})")
    raise DataError(
        f"nowhere to keep the catalogue of {sources.folder}: cannot write {' nor '.join(reasons)}; "
        "make one writable, or set XDG_CACHE_HOME"
    )


@functools.cache
def _open(folder: Path) -> Catalogue:
    """Return the catalogue of a folder; raise OSError if it is missing."""
    try:
        return Catalogue(folder)
    except ValueError as error:
        raise DataError(
            f"{folder} is damaged: {error}; remove the folder to have it built again"
        ) from error


def _hash(sources: Sources, roots: Sequence[Path], num_products: int | None) -> str:
    hashes = [content_hash(file, roots) for file in sources.files]
    return hashlib.sha256(json.dumps([hashes, num_products]).encode()).hexdigest()


def _build(folder: Path, sources: Sources, num_products: int | None) -> dict[str, Any]:
    """Write all but the facts into an empty folder; return the facts."""
    skipped: Counter[str] = Counter(nan=0, long=0, duplicate=0)
    listings = read_listings(sources, num_products, skipped)
    table = np.fromiter(_write_records(listings, folder / _RECORDS), _COLUMNS)
    if not len(table):
        raise DataError(
            f"{sources.products} holds no products (passed over: {sum(skipped.values())}); "
            "fetch or generate the file again"
        )
    for name in _COLUMNS.names or ():
        save_array(folder / f"{name}.npy", table[name])
    build_index(_documents(folder / _RECORDS), folder / _SEARCH)
    return {"skipped": dict(skipped), "files": [file.name for file in sources.files]}


def _write_records(listings: Iterable[Listing], path: Path) -> Iterator[tuple[Any, ...]]:
    """Write products to a file; yield the row of each for the columns."""
    with path.open("wb") as file:
        end = 0
        for listing in listings:
            product = listing.product
            end += file.write(_listings.dump_json(listing) + b"\n")
            lower, upper = (*product.prices, math.nan)[:2]
            hashes = text_hashes((product.asin, product.category, product.query))
            yield end, lower, upper, _count_goals(listing), len(listing.human), *hashes


def _count_goals(listing: Listing) -> int:
    """Return the value of the column "goals"."""
    if listing.synthetic is None:
        return NO_INSTRUCTION if listing.in_attributes else NOT_IN_ATTRIBUTES
    return min(math.prod(map(len, listing.product.options.values())), _MOST_GOALS)


def _documents(records: Path) -> Iterator[tuple[str, str]]:
    """Yield each product's asin and searchable text."""
    with records.open("rb") as file:
        for line in file:
            product = _listings.validate_json(line).product
            yield product.asin, searchable_text(product)


def searchable_text(product: Product) -> str:
    """Return the text that searches match: title, description, first feature and options."""
    options = ", and ".join(f"{name}: {', '.join(v)}" for name, v in product.options.items())
    first = product.bullets[0] if product.bullets else ""
    return " ".join((product.title, product.description, first, options)).lower()
