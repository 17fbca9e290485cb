"""Generate WebShop catalogues offline in the original's three files, deterministically."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from env_wrappers.datasets import is_generated, new_directory, write_manifest
from env_wrappers.errors import DataError
from env_wrappers.files import file_hash
from env_wrappers.webshop.synthetic_products import (
    MAX_BRANDS,
    MAX_LOOKALIKES,
    brands_of,
    make_product,
    order_of,
)

GENERATOR_VERSION = 2
ITEMS, ATTRIBUTES, HUMAN = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"

_PROGRESS = 1000  # products between two calls of on_progress


@dataclass(frozen=True)
class CatalogueSpec:
    """What to generate.

    Attributes:
        products: number of products. A product with an instruction gives one synthetic goal per
            combination of its options, seven or eight on average.
        seed: the same spec gives the same bytes; another seed gives other products.
        lookalikes: products of the same brand and kind, from 1 to 6, whose titles have the same
            words. If there are several, only the pages of the products tell which one is wanted.
        instructed: share of the products that have synthetic goals.
        human: share of those that also have human goals.
    """

    products: int = 400
    seed: int = 0
    lookalikes: int = 3
    instructed: float = 0.9
    human: float = 0.25

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            DataError: a value is out of range.
        """
        if self.products < 1 or self.seed < 0:
            raise DataError("the number of products must be at least 1, the seed at least 0")
        if not 1 <= self.lookalikes <= MAX_LOOKALIKES:
            raise DataError(f"lookalikes must be from 1 to {MAX_LOOKALIKES}")
        if not (0 < self.instructed <= 1 and 0 <= self.human <= 1):
            raise DataError(
                "the share of products with an instruction must be above 0 and at "
                "most 1, the share with a human one from 0 to 1"
            )
        if brands_of(self.products, self.lookalikes) > MAX_BRANDS:
            raise DataError(
                f"there are not enough brands for {self.products:,} products: "
                "choose fewer products or more lookalikes"
            )


def generate(
    out: Path,
    spec: CatalogueSpec,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a catalogue, or nothing on error, in constant memory.

    If `out` already holds the catalogue of the same spec, it is left unchanged.

    Args:
        out: the directory to create.
        on_progress: called at intervals with the number of products made and the total.

    Raises:
        DataError: `out` holds something else.
    """
    out = Path(out)
    if is_generated(out, GENERATOR_VERSION, asdict(spec)):
        return
    with new_directory(out) as partial:
        counts = _write(partial, spec, on_progress)
        hashes = {name: file_hash(partial / name) for name in (ITEMS, ATTRIBUTES, HUMAN)}
        write_manifest(partial, GENERATOR_VERSION, asdict(spec), counts=counts, sha256=hashes)


def _write(
    folder: Path, spec: CatalogueSpec, on_progress: Callable[[int, int], None]
) -> Counter[str]:
    """Write the files; return the number of products, by department too, and of instructions."""
    counts: Counter[str] = Counter()
    with (
        _JsonFile(folder / ITEMS, "[]") as items,
        _JsonFile(folder / ATTRIBUTES, "{}") as attributes,
        _JsonFile(folder / HUMAN, "{}") as human,
    ):
        for done, number in enumerate(order_of(spec.seed, spec.products), start=1):
            product = make_product(
                *(spec.seed, number, spec.products),
                *(spec.lookalikes, spec.instructed, spec.human),
            )
            items.add(product.item)
            attributes.add(product.attributes, product.asin)
            if product.human:
                human.add(product.human, product.asin)
            counts["products"] += 1
            counts[product.item["category"]] += 1
            counts["instructions"] += "instruction" in product.attributes
            counts["human instructions"] += len(product.human)
            if done % _PROGRESS == 0 or done == spec.products:
                on_progress(done, spec.products)
    return counts


class _JsonFile:
    """A JSON list or object that is written one entry per line."""

    def __init__(self, path: Path, brackets: str):
        self._file = path.open("w", encoding="utf-8")
        self._separator, self._end = f"{brackets[0]}\n", f"{brackets[1]}\n"

    def __enter__(self) -> "_JsonFile":
        return self

    def add(self, value: object, key: str | None = None) -> None:
        """Append an entry; for an object, with its key."""
        name = "" if key is None else f"{_ENCODER.encode(key)}: "
        self._file.write(f"{self._separator}{name}{_ENCODER.encode(value)}")
        self._separator = ",\n"

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._file.write(("\n" if self._separator == ",\n" else self._separator) + self._end)


_ENCODER = json.JSONEncoder(ensure_ascii=False)
