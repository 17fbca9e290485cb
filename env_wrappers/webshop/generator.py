"""Generate WebShop catalogues offline in the original's three files, deterministically."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from env_wrappers.datasets import is_generated, new_directory, write_manifest
from env_wrappers.files import file_hash
from env_wrappers.webshop.synthetic_products import CatalogueSpec, make_product, order_of

GENERATOR_VERSION = 3
ITEMS, ATTRIBUTES, HUMAN = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"

_PROGRESS = 1000  # products between two calls of on_progress


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
        for done, number in enumerate(order_of(spec), start=1):
            item, entry, wishes = make_product(spec, number)
            items.add(item)
            attributes.add(entry, item["asin"])
            if wishes:
                human.add(wishes, item["asin"])
            counts["products"] += 1
            counts[item["category"]] += 1
            counts["instructions"] += "instruction" in entry
            counts["human instructions"] += len(wishes)
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
