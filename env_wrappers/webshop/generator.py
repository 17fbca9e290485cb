"""Generate WebShop catalogues offline in the original's three files, deterministically."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path

from env_wrappers.datasets import is_generated, new_directory, write_manifest
from env_wrappers.files import file_hash
from env_wrappers.webshop.source import HUMAN
from env_wrappers.webshop.synthetic_products import CatalogueSpec, make_product, order_of

GENERATOR_VERSION = 3
ITEMS, ATTRIBUTES = "items_shuffle.json", "items_ins_v2.json"

_PROGRESS = 1000  # products between two calls of on_progress
_encode = json.JSONEncoder(ensure_ascii=False).encode


def generate(
    out: Path,
    spec: CatalogueSpec,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write a catalogue, or nothing on error, in constant memory.

    If `out` already holds the catalogue of the same spec, it is left unchanged.

    Args:
        out: the directory to create.
        spec: what to generate.
        on_progress: called at intervals with the number of products made and the total.

    Raises:
        DataError: `out` contains other files.
    """
    if is_generated(out, GENERATOR_VERSION, asdict(spec)):
        return
    with new_directory(out) as partial:
        counts = _write(partial, spec, on_progress)
        hashes = {name: file_hash(partial / name) for name in (ITEMS, ATTRIBUTES, HUMAN)}
        write_manifest(partial, GENERATOR_VERSION, asdict(spec), counts=counts, sha256=hashes)
    is_generated(out, GENERATOR_VERSION, asdict(spec))  # fails if another process was first


def _write(
    folder: Path, spec: CatalogueSpec, on_progress: Callable[[int, int], None]
) -> Counter[str]:
    """Write the files; return the number of products, by department too, and of instructions."""
    counts: Counter[str] = Counter()
    with (
        _json_file(folder / ITEMS, "[]") as add_item,
        _json_file(folder / ATTRIBUTES, "{}") as add_attributes,
        _json_file(folder / HUMAN, "{}") as add_human,
    ):
        for done, number in enumerate(order_of(spec), start=1):
            item, entry, human = make_product(spec, number)
            asin = _encode(item["asin"])
            add_item(_encode(item))
            add_attributes(f"{asin}: {_encode(entry)}")
            if human:
                add_human(f"{asin}: {_encode(human)}")
            counts["products"] += 1
            counts[item["category"]] += 1
            counts["instructions"] += "instruction" in entry
            counts["human instructions"] += len(human)
            if done % _PROGRESS == 0 or done == spec.products:
                on_progress(done, spec.products)
    return counts


@contextmanager
def _json_file(path: Path, brackets: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that adds an entry to a JSON list or object, one per line."""
    separators = chain(["\n"], repeat(",\n"))
    with path.open("w", encoding="utf-8") as file:
        file.write(brackets[0])
        yield lambda entry: file.write(next(separators) + entry)
        file.write(f"\n{brackets[1]}\n")
