"""Read WebShop's data files: products, attributes with synthetic instructions, and human ones.

The files of the full store take gigabytes, so products are streamed. All values are validated;
errors name a record by its file, number and field.
"""

import fnmatch
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, TypeAdapter, model_validator

from env_wrappers.errors import DataError
from env_wrappers.files import open_regular, validate_json
from env_wrappers.webshop.records import Instruction, Listing, Product

DATA_VARIABLE = "WEBSHOP_DATA"
"""Environment variable that names the data directory."""

PRODUCTS_GLOB = "items_shuffle*.json"
ATTRIBUTES_GLOB = "items_ins_v2*.json"
HUMAN = "items_human_ins.json"

_LONGEST_ASIN = 10
_NO_PRICE = 100.0  # the original's price for products without one
_NO_DIGIT = re.compile(r"[^\d.]")
_REMEDY = (
    f"give the directory that holds WebShop's {PRODUCTS_GLOB} and {ATTRIBUTES_GLOB}, or name it in "
    f"{DATA_VARIABLE}; `hgpo data generate webshop` makes one"
)
_DAMAGED = "fetch or generate the file again"
_CHUNK = 1 << 20  # characters read at a time
_LONGEST_VALUE = 1 << 24  # characters of one product: a bound on memory in damaged files


class Sources(NamedTuple):
    """The data files of a store.

    Attributes:
        products: JSON list of products.
        attributes: JSON object of attributes and synthetic instructions, by asin.
        human: JSON object of human instructions, by asin; None if missing.
    """

    products: Path
    attributes: Path
    human: Path | None

    @property
    def folder(self) -> Path:
        """Directory of the files."""
        return self.products.parent

    @property
    def files(self) -> tuple[Path, ...]:
        """All existing files."""
        return tuple(file for file in self if file)


def find_sources(data: str | Path | None = None) -> Sources:
    """Return the data files in a directory.

    Args:
        data: the directory; None uses ``$WEBSHOP_DATA``.

    Raises:
        DataError: the directory or a file is missing, or a file is ambiguous.
    """
    named = os.environ.get(DATA_VARIABLE) if data is None else data
    if not named:
        raise DataError(f"no WebShop data: {_REMEDY}")
    origin = f" (from {DATA_VARIABLE})" if data is None else ""
    try:
        folder = Path(named).expanduser().resolve()
        # Path.glob finds nothing in an unreadable folder.
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot read {str(named)!r}{origin}: {error}; {_REMEDY}") from error
    if names is None:
        raise DataError(f"no WebShop data: {folder}{origin} is not a directory; {_REMEDY}")
    return Sources(
        products=_only_match(folder, names, PRODUCTS_GLOB),
        attributes=_only_match(folder, names, ATTRIBUTES_GLOB),
        human=folder / HUMAN if HUMAN in names else None,
    )


def read_listings(
    sources: Sources, num_products: int | None, skipped: Counter[str]
) -> Iterator[Listing]:
    """Yield the store's products in file order.

    As in the original, records are skipped whose asin is "nan", longer than ten characters, or a
    duplicate of an earlier one.

    Args:
        sources: the files.
        num_products: read only the first `num_products` records; None reads all.
        skipped: counts the skipped records: "nan", "long" and "duplicate".

    Raises:
        DataError: a file cannot be read, is not JSON, or has an invalid record.
    """
    attributes = _read_object(sources.attributes)
    human = _read_object(sources.human) if sources.human else {}
    seen: set[str] = set()
    for number, (_, record, raw) in enumerate(_values(sources.products, "[]"), start=1):
        if num_products is not None and number > num_products:
            return
        asin = record.get("asin") if isinstance(record, dict) else None
        reason = _reason_to_skip(asin, seen)
        if reason:
            skipped[reason] += 1
            continue
        item = validate_json(_items, raw, f"product {number} ({asin!r}) in {sources.products}")
        place = f"entry {asin!r} in {sources.attributes}"
        entry = validate_json(_entries, attributes.get(item.asin, "{}"), place)
        place = f"entry {asin!r} in {sources.human}"
        written = validate_json(_human_instructions, human.get(item.asin, "[]"), place)
        text, wanted = entry.instruction, entry.instruction_attributes
        yield Listing(
            product=_product(len(seen), item, entry),
            in_attributes=item.asin in attributes,
            synthetic=Instruction(text, wanted) if text is not None and wanted else None,
            human=tuple(
                Instruction(h.instruction, h.instruction_attributes, h.instruction_options)
                for h in written
                if h.instruction_attributes  # the original makes no goal without attributes
            ),
        )
        seen.add(item.asin)


def _only_match(folder: Path, names: Sequence[str], pattern: str) -> Path:
    found = sorted(fnmatch.filter(names, pattern))
    if not found:
        raise DataError(f"no {pattern} in {folder}; {_REMEDY}")
    if len(found) > 1:
        raise DataError(
            f"several files match {pattern} in {folder}: {', '.join(found)}; keep one there, "
            "with the others in directories of their own"
        )
    return folder / found[0]


def _reason_to_skip(asin: Any, seen: set[str]) -> str:
    if not isinstance(asin, str):
        return ""  # refused with the other fields
    if asin == "nan":
        return "nan"
    if len(asin) > _LONGEST_ASIN:
        return "long"
    return "duplicate" if asin in seen else ""


# --- incremental JSON parsing ------------------------------------------------------------------


def _read_object(path: Path) -> dict[str, bytes]:
    """Return the values of a JSON object as JSON, which takes a tenth of the memory."""
    return {key: raw.encode() for key, _, raw in _values(path, "{}")}


def _values(path: Path, brackets: str) -> Iterator[tuple[str, Any, str]]:
    """Yield key ("" in a list), value and text of each element of a JSON list or object.

    The file is read piece by piece, because it can take gigabytes.
    """
    kind, element, key = _KINDS[brackets]
    first, later = (re.compile(comma + _SPACE + key, re.DOTALL) for comma in ("", f"{_SPACE},"))
    found = 0
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8", newline="") as file:
            text = file.read(_CHUNK)
            if not text.lstrip().startswith(brackets[0]):
                raise DataError(f"{path} is not a JSON {kind}; {_DAMAGED}")
            place = text.index(brackets[0]) + 1
            while True:
                try:
                    begin = (later if found else first).match(text, place)
                    if begin is None:
                        raise ValueError(f"Expecting another {element} or '{brackets[1]}'")
                    name = _DECODER.decode(begin[1] or '""')
                    value, end = _DECODER.raw_decode(text, begin.end())
                    if end == len(text):  # perhaps a part of a number
                        raise ValueError(f"Expecting '{brackets[1]}'")
                except ValueError:
                    more = file.read(_CHUNK)
                    if not more and text[place:].strip(" \t\n\r") == brackets[1]:
                        return
                    if not more or len(text) - place > _LONGEST_VALUE:
                        raise
                    text, place = text[place:] + more, 0
                else:
                    yield name, value, text[begin.end() : end]
                    place, found = end, found + 1
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; make it readable") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is truncated or invalid JSON after {element} {found}: {error}; {_DAMAGED}"
        ) from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_SPACE = r"[ \t\n\r]*"
_KEY = rf'("[^"\\]*+(?:\\.[^"\\]*+)*+"){_SPACE}:{_SPACE}'
_KINDS = {
    "[]": ("list of products", "product", "()"),
    "{}": ("object with an entry for each asin", "entry", _KEY),
}


# --- records -----------------------------------------------------------------------------------


def _prices(text: Any) -> tuple[float, ...]:
    """Return one price or the two ends of a range."""
    if not text:
        return (_NO_PRICE,)
    amounts = text.split("$")[1:] if isinstance(text, str) else []
    if not amounts:
        raise ValueError(f"{text!r} is not text with a $")
    try:
        prices = tuple(float(_NO_DIGIT.sub("", amount)) for amount in amounts)
    except ValueError:
        prices = (math.inf,)
    if not all(map(math.isfinite, prices)):
        raise ValueError(f"{text!r} is not a price")
    return prices[:2]


class _Choice(BaseModel, strict=True):
    value: str


class _Item(BaseModel, strict=True):
    asin: str
    name: str
    full_description: str
    small_description: Annotated[
        list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ]
    pricing: Annotated[tuple[float, ...], BeforeValidator(_prices)] = (_NO_PRICE,)
    customization_options: Annotated[
        dict[str, list[_Choice] | None], BeforeValidator(lambda value: value or {})
    ]
    category: str
    query: str
    product_category: str


class _Entry(BaseModel, strict=True):
    attributes: tuple[str, ...] = ("DUMMY_ATTR",)  # matches nothing
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _instruction_has_attributes(self) -> Self:
        if self.instruction is not None and not self.instruction_attributes:
            raise ValueError('an "instruction" needs "instruction_attributes"')
        return self


class _HumanInstruction(BaseModel, strict=True):
    instruction: str
    instruction_attributes: tuple[str, ...]
    instruction_options: tuple[str, ...]


_items, _entries = TypeAdapter(_Item), TypeAdapter(_Entry)
_human_instructions = TypeAdapter(list[_HumanInstruction])


def _product(index: int, item: _Item, entry: _Entry) -> Product:
    options = {}
    for name, choices in item.customization_options.items():
        if choices is not None:
            values = (choice.value.strip().replace("/", " | ").lower() for choice in choices)
            options[name.lower()] = tuple(values)
    return Product(
        index=index,
        asin=item.asin,
        title=item.name,
        description=item.full_description,
        bullets=tuple(item.small_description),
        prices=item.pricing,
        price_tag=" to ".join(f"${price}" for price in item.pricing),
        options=options,
        category=item.category,
        query=item.query.lower().strip(),
        product_category=item.product_category,
        attributes=entry.attributes,
    )
