"""Read WebShop's data files: products, attributes with synthetic wishes, and human wishes.

The files of the full store take gigabytes, so products are streamed. All values are validated;
errors name a record by its file, number and field.
"""

import fnmatch
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ijson

from env_wrappers.errors import DataError
from env_wrappers.files import BoundedFile, open_regular
from env_wrappers.webshop.records import Product

DATA_VARIABLE = "WEBSHOP_DATA"
"""Environment variable that names the data directory."""

PRODUCTS = "items_shuffle*.json"
ATTRIBUTES = "items_ins_v2*.json"
HUMAN = "items_human_ins.json"

_LONGEST_ASIN = 10
_NO_PRICE = 100.0  # the original's price for products without one
_NO_ATTRIBUTES = ("DUMMY_ATTR",)  # matches nothing
_NO_DIGIT = re.compile(r"[^\d.]")
_REMEDY = (
    f"give the directory that holds WebShop's {PRODUCTS} and {ATTRIBUTES}, or name it in "
    f"{DATA_VARIABLE}; `hgpo data generate webshop` makes one"
)
_DAMAGED = "fetch or generate the file again"


@dataclass(frozen=True, slots=True)
class Sources:
    """The data files of a store.

    Attributes:
        products: JSON list of products.
        attributes: JSON object of attributes and synthetic wishes, by asin.
        human: JSON object of human wishes, by asin; None if missing.
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
        return tuple(file for file in (self.products, self.attributes, self.human) if file)


@dataclass(frozen=True, slots=True)
class Wish:
    """The source of one or more goals.

    Attributes:
        instruction: the wish in words.
        attributes: attributes that the product must have; never empty.
        options: wanted option values; only in human wishes.
    """

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A product with its wishes.

    Attributes:
        product: the product.
        in_attributes: whether the attributes file contains the product.
        made: the wish made from its attributes, if any.
        human: the wishes that people wrote for it.
    """

    product: Product
    in_attributes: bool
    made: Wish | None
    human: tuple[Wish, ...]


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
        if not folder.is_dir():
            raise DataError(f"no WebShop data: {folder}{origin} is not a directory; {_REMEDY}")
        # Path.glob finds nothing in an unreadable folder.
        names = [file.name for file in folder.iterdir()]
        return Sources(
            products=_only_match(folder, names, PRODUCTS),
            attributes=_only_match(folder, names, ATTRIBUTES),
            human=folder / HUMAN if HUMAN in names else None,
        )
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot read {str(named)!r}{origin}: {error}; {_REMEDY}") from error


def read_listings(
    sources: Sources, num_products: int | None = None, skipped: Counter[str] | None = None
) -> Iterator[Listing]:
    """Yield the store's products in file order.

    As in the original, records are skipped whose asin is "nan", longer than ten characters, or a
    duplicate of an earlier one.

    Args:
        sources: the files.
        num_products: read only the first `num_products` records; None reads all.
        skipped: counter of the skipped records: "nan", "long" and "duplicate".

    Raises:
        DataError: a file cannot be read, is not JSON, or has an invalid record.
    """
    skipped = Counter() if skipped is None else skipped
    made = _read_object(sources.attributes)
    human = _read_object(sources.human) if sources.human else {}
    seen: set[str] = set()
    for number, record in enumerate(_read_list(sources.products), start=1):
        if num_products is not None and number > num_products:
            return
        place = _Place(sources.products, f"product {number}")
        asin = place.text(place.mapping(record), "asin")
        reason = _reason_to_skip(asin, seen)
        if reason:
            skipped[reason] += 1
            continue
        entry = json.loads(made[asin]) if asin in made else None
        wishes = json.loads(human[asin]) if asin in human else []
        attributes = _Place(sources.attributes, f"entry {asin!r}")
        yield Listing(
            product=_product(place.named(asin), record, len(seen), attributes, entry),
            in_attributes=entry is not None,
            made=_made_wish(attributes, entry),
            human=_human_wishes(_Place(sources.human or sources.folder, f"entry {asin!r}"), wishes),
        )
        seen.add(asin)


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


def _reason_to_skip(asin: str, seen: set[str]) -> str:
    if asin == "nan":
        return "nan"
    if len(asin) > _LONGEST_ASIN:
        return "long"
    return "duplicate" if asin in seen else ""


# --- incremental JSON parsing ------------------------------------------------------------------


def _read_list(path: Path) -> Iterator[Any]:
    """Yield the elements of a JSON list."""
    count = 0
    with _opened(path, b"[", "list of products") as file:
        try:
            for element in ijson.items(file, "item", use_float=True):
                count += 1
                yield element
        except (ijson.JSONError, ValueError) as error:
            raise DataError(
                f"{path} is cut off or no JSON after product {count}: {_first_line(error)}; "
                f"{_DAMAGED}"
            ) from error


def _read_object(path: Path) -> dict[str, bytes]:
    """Return the values of a JSON object as JSON, which takes a tenth of the memory."""
    entries: dict[str, bytes] = {}
    with _opened(path, b"{", "object with an entry for each asin") as file:
        try:
            for key, value in ijson.kvitems(file, "", use_float=True):
                entries[key] = json.dumps(value).encode()
        except (ijson.JSONError, ValueError) as error:
            raise DataError(
                f"{path} is cut off or no JSON after entry {len(entries)}: {_first_line(error)}; "
                f"{_DAMAGED}"
            ) from error
    return entries


@contextmanager
def _opened(path: Path, start: bytes, expected: str) -> Iterator[BoundedFile]:
    """Open a JSON file and check its first bytes."""
    try:
        with open_regular(path) as file:
            if file.read(4096).lstrip()[:1] != start:
                raise DataError(f"{path} is not a JSON {expected}; {_DAMAGED}")
            file.seek(0)
            yield BoundedFile(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; make it readable") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("b'").partition("\\n")[0]


# --- records -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a record, for error messages, with typed access to its fields."""

    file: Path
    name: str

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.name} in {self.file} {problem}; correct or remove it")

    def named(self, asin: str) -> "_Place":
        return _Place(self.file, f"{self.name} ({asin})")

    def mapping(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(f"is not an object, but {_kind(value)}")
        return value

    def field(self, record: dict[str, Any], key: str) -> Any:
        if key not in record:
            raise self.error(f'has no field "{key}"')
        return record[key]

    def text(self, record: dict[str, Any], key: str) -> str:
        value = self.field(record, key)
        if not isinstance(value, str):
            raise self.error(f'has {_kind(value)} as "{key}", where text belongs')
        return value

    def texts(self, record: dict[str, Any], key: str) -> tuple[str, ...]:
        value = self.field(record, key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.error(f'has no list of texts as "{key}"')
        return tuple(value)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return "null" if value is None else kinds.get(type(value), "a number")


def _product(
    place: _Place,
    record: dict[str, Any],
    index: int,
    attributes: _Place,
    entry: Any,
) -> Product:
    prices, price_tag = _prices(place, record.get("pricing"))
    single = isinstance(record.get("small_description"), str)
    bullets = place.text if single else place.texts
    found = bullets(record, "small_description")
    known = entry is not None and "attributes" in attributes.mapping(entry)
    return Product(
        index=index,
        asin=record["asin"],
        title=place.text(record, "name"),
        description=place.text(record, "full_description"),
        bullets=(found,) if isinstance(found, str) else found,
        prices=prices,
        price_tag=price_tag,
        options=_options(place, record),
        category=place.text(record, "category"),
        query=place.text(record, "query").lower().strip(),
        product_category=place.text(record, "product_category"),
        attributes=attributes.texts(entry, "attributes") if known else _NO_ATTRIBUTES,
    )


def _prices(place: _Place, text: Any) -> tuple[tuple[float, ...], str]:
    """Return one price or the two ends of a range, and the tag as shown."""
    if not text:
        return (_NO_PRICE,), f"${_NO_PRICE}"
    if not isinstance(text, str):
        raise place.error(f'has {_kind(text)} as "pricing", where text belongs')
    amounts = text.split("$")[1:]
    if not amounts:
        raise place.error(f'has the "pricing" {text!r}, which lacks a $')
    try:
        prices = tuple(float(_NO_DIGIT.sub("", amount)) for amount in amounts)
    except ValueError:
        prices = (math.inf,)
    if not all(map(math.isfinite, prices)):
        raise place.error(f'has the "pricing" {text!r}, which is no price')
    if len(prices) == 1:
        return prices, f"${prices[0]}"
    return prices[:2], f"${prices[0]} to ${prices[1]}"


def _options(place: _Place, record: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    groups = place.field(record, "customization_options")
    options: dict[str, tuple[str, ...]] = {}
    if not groups:
        return options
    if not isinstance(groups, dict):
        raise place.error(f'has {_kind(groups)} as "customization_options", not an object')
    for name, choices in groups.items():
        if choices is None:
            continue
        where = _Place(place.file, f"option {name!r} of {place.name}")
        if not isinstance(choices, list):
            raise where.error(f"is not a list, but {_kind(choices)}")
        values = (where.text(where.mapping(choice), "value") for choice in choices)
        options[name.lower()] = tuple(value.strip().replace("/", " | ").lower() for value in values)
    return options


def _made_wish(place: _Place, entry: Any) -> Wish | None:
    if entry is None or place.mapping(entry).get("instruction") is None:
        return None
    attributes = place.texts(entry, "instruction_attributes")
    if not attributes:
        raise place.error('has an "instruction" but no "instruction_attributes"')
    return Wish(place.text(entry, "instruction"), attributes)


def _human_wishes(place: _Place, wishes: Any) -> tuple[Wish, ...]:
    if not isinstance(wishes, list):
        raise place.error(f"is not a list, but {_kind(wishes)}")
    found = []
    for wish in map(place.mapping, wishes):
        attributes = place.texts(wish, "instruction_attributes")
        if attributes:  # the original makes no goal without attributes
            options = place.texts(wish, "instruction_options")
            found.append(Wish(place.text(wish, "instruction"), attributes, options))
    return tuple(found)
