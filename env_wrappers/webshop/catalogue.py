"""A read-only catalogue of all products of a store, shared within a process, with search.

Data derived from the files is built once and cached on disk (see ``cache.py``). Opening it again
maps files into memory and does not read the original data.
"""

import contextlib
import functools
import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from env_wrappers.errors import DataError
from env_wrappers.files import read_json
from env_wrappers.webshop import store as stores
from env_wrappers.webshop.bm25 import Index, build_index
from env_wrappers.webshop.cache import FORMAT, cache_roots, content_hash, ensure_folder
from env_wrappers.webshop.records import Listing, Product
from env_wrappers.webshop.source import Sources, find_sources, read_listings
from env_wrappers.webshop.store import Store, write_store

_FACTS = "facts.json"
_SEARCH = "search"
_CACHED_LISTINGS = 4_096  # about 5 KB each
_CACHED_SEARCHES = 8_192  # about 2 KB each
_LONGEST_CACHED_QUERY = 1_000


class Catalogue:
    """The products of a store, as a sequence.

    Attributes:
        folder: the folder of the derived data.
        data_hash: hash of the contents of the data files and of the requested number of products.
        facts: counts from the build: ``products``; the records ``skipped`` ("nan", "long",
            "duplicate"); products ``without_attributes`` and the first of them; the names of the
            data ``files``.
        store: the underlying files.
    """

    def __init__(self, folder: Path) -> None:
        """Open the files of a folder; use :func:`open_catalogue` instead.

        Raises:
            OSError, ValueError: the files cannot be read.
        """
        self.folder = folder
        self.facts: dict[str, Any] = read_json(folder / _FACTS)
        self.store = Store(folder)
        self._index = Index(folder / _SEARCH)
        self.data_hash: str = self.facts["data_hash"]
        self._listing = functools.lru_cache(_CACHED_LISTINGS)(self.store.read)
        self._search = functools.lru_cache(_CACHED_SEARCHES)(self._search_anew)

    def __len__(self) -> int:
        """Return the number of products."""
        return len(self.store)

    def __iter__(self) -> Iterator[Product]:
        """Yield all products in order."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Product:
        """Return a product.

        Raises:
            IndexError: ``index`` is out of range.
        """
        return self.listing(index).product

    def listing(self, index: int) -> Listing:
        """Return a product with the wishes that goals are made from.

        Raises:
            IndexError: ``index`` is out of range.
        """
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"no product {index}: there are {len(self)} (0 is the first)")
        return self._listing(index)

    def index_of(self, asin: str) -> int | None:
        """Return the index of the product with this asin, or None."""
        found = self._having("asin", asin)
        return int(found[0]) if len(found) else None

    def in_category(self, name: str) -> np.ndarray:
        """Return the indices of a department's products, ascending."""
        return self._having("category", name)

    def of_query(self, text: str) -> np.ndarray:
        """Return the indices of the products listed under exactly this query, ascending."""
        return self._having("query", text)

    def search(self, query: str, limit: int = 50) -> tuple[int, ...]:
        """Return the indices of the products that best match a query, best first."""
        search = self._search if len(query) <= _LONGEST_CACHED_QUERY else self._search_anew
        return search(query, limit)

    def _having(self, field: str, text: str) -> np.ndarray:
        found = self.store.find(field, text)
        # Comparing one result rules out another text with the same hash.
        known = len(found) > 0 and getattr(self[int(found[0])], field) == text
        return found if known else found[:0]

    def _search_anew(self, query: str, limit: int) -> tuple[int, ...]:
        return tuple(self._index.search(query, limit).tolist())


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
        raise DataError(f"{num_products!r} products make no catalogue: ask for at least 1, or None")
    sources = find_sources(data)
    roots = cache_roots(sources.folder)
    data_hash = _hash(sources, roots, num_products)
    name = f"{data_hash[:32]}-v{FORMAT}"
    for root in roots:
        with contextlib.suppress(OSError):
            return _open(root / name)

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
    skipped: Counter[str] = Counter(nan=0, long=0, duplicate=0)
    facts = write_store(read_listings(sources, num_products, skipped), folder)
    if not facts["products"]:
        raise DataError(
            f"{sources.products} holds no products (passed over: {sum(skipped.values())}); "
            "fetch or generate the file again"
        )
    build_index(stores.documents(Store(folder)), folder / _SEARCH)
    return facts | {
        "skipped": dict(skipped),
        "files": [file.name for file in sources.files],
    }
