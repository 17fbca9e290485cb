"""Reading WebShop's data files into a catalogue, and errors that name what is wrong."""

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.webshop import catalogue, source
from env_wrappers.webshop.catalogue import (
    NO_INSTRUCTION,
    NOT_IN_ATTRIBUTES,
    open_catalogue,
    searchable_text,
)
from env_wrappers.webshop.source import Listing, find_sources, read_listings
from tests.unit.env_wrappers.webshop.webshop_data import (
    ATTRIBUTES,
    ENTRIES,
    HUMAN,
    ITEMS,
    PRODUCTS,
    choices,
    entry,
    human_entry,
    item,
    write_data,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def _listings(data: Path, **changed: Any) -> list[Listing]:
    return list(read_listings(find_sources(write_data(data, **changed)), None, Counter()))


# --- what the files say ------------------------------------------------------------------------


def test_products_are_as_the_store_shows_them(data: Path) -> None:
    towel, second, mop = (open_catalogue(data)[index] for index in range(3))
    assert (towel.index, towel.asin, towel.title) == (0, "B1", "Towel B1")
    assert towel.options == {"size": ("s", "l"), "color": ("red | blue", "green")}
    assert (towel.prices, towel.price_tag) == ((9.99,), "$9.99")
    assert (towel.category, towel.query) == ("beauty", "hair towels")
    assert towel.bullets == ("Dries fast", "Two pieces")
    assert towel.attributes == ("soft",)
    assert (second.prices, second.price_tag) == ((5.0, 19.5), "$5.0 to $19.5")
    assert second.bullets == ("One feature",)
    assert (mop.prices, mop.price_tag, mop.options) == ((100.0,), "$100.0", {})


@pytest.mark.parametrize(
    ("text", "prices", "tag"),
    [
        ("$4.99", (4.99,), "$4.99"),
        ("$70", (70.0,), "$70.0"),
        ("$1,847.00", (1847.0,), "$1847.0"),
        ("USD $1 - $2.50 ($3)", (1.0, 2.5), "$1.0 to $2.5"),
        ("$9 to $5", (9.0, 5.0), "$9.0 to $5.0"),
        ("$3 - $0", (3.0, 0.0), "$3.0 to $0.0"),
        (None, (100.0,), "$100.0"),
    ],
)
def test_prices(data: Path, text: str | None, prices: tuple[float, ...], tag: str) -> None:
    product = open_catalogue(write_data(data, items=[item("B1", pricing=text)]))[0]
    assert (product.prices, product.price_tag) == (prices, tag)


def test_a_product_that_the_attributes_lack_matches_nothing(data: Path) -> None:
    entries = {"B2": {}, "B3": {"attributes": []}}
    found = open_catalogue(write_data(data, entries=entries))
    assert [p.attributes for p in found] == [("DUMMY_ATTR",), ("DUMMY_ATTR",), ()]
    assert found.columns["goals"].tolist() == [NOT_IN_ATTRIBUTES, NO_INSTRUCTION, NO_INSTRUCTION]


def test_groups_of_the_same_name_take_the_place_of_the_first(data: Path) -> None:
    options = choices(Size="s", color="red", SIZE="l|l")
    listing = _listings(data, items=[item("B1", customization_options=options)])[0]
    assert list(listing.product.options.items()) == [("size", ("l", "l")), ("color", ("red",))]


def test_records_are_passed_over_as_in_the_original_and_counted(data: Path) -> None:
    later = item("B1", name=None)  # is not validated
    items = [item("nan"), item("B1"), later, item("B2345678901"), item("B2"), item("B1")]
    found = open_catalogue(write_data(data, items=items))
    assert [product.asin for product in found] == ["B1", "B2"]
    assert found.facts["skipped"] == {"nan": 1, "long": 1, "duplicate": 2}
    assert json.loads((found.folder / "facts.json").read_text()) == found.facts
    some = open_catalogue(data, num_products=3)  # counts records, not products
    assert [product.asin for product in some] == ["B1"]
    assert some.facts["skipped"] == {"nan": 1, "long": 0, "duplicate": 1}
    assert some.facts["data_hash"] != found.facts["data_hash"]


def test_searches_look_at_title_description_first_feature_and_options(data: Path) -> None:
    found = open_catalogue(data)
    assert searchable_text(found[0]) == (
        "towel b1 a soft towel. dries fast size: s, l, and color: red | blue, green"
    )
    assert searchable_text(
        _listings(data, items=[item("B1", small_description=[])])[0].product
    ) == ("towel b1 a soft towel.  ")


# --- what can be wrong with them ---------------------------------------------------------------


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in item("B2").items() if name != key}


FIELDS = (
    *("asin", "name", "full_description", "small_description", "customization_options"),
    *("category", "query", "product_category"),
)
BROKEN: list[tuple[dict[str, Any], str]] = [
    *(
        ({"items": [item("B1"), _without(key)]}, rf"product 2 .*: {key}: Field required; correct")
        for key in FIELDS
    ),
    *(
        ({"items": [item("B1", **{key: 3})]}, rf"product 1 .*: {key}: Input should be a valid str")
        for key in ("asin", "name", "full_description", "category", "query")
    ),
    ({"items": [item("B1", name=None)]}, "name: Input should be a valid string"),
    ({"items": [item("B1", small_description=["a", None])]}, "small_description.1: Input should"),
    ({"items": [item("B1", pricing="12.99")]}, r"1 \('B1'\) .* '12.99' is not text with a \$"),
    ({"items": [item("B1", pricing=3)]}, r"pricing: .* 3 is not text with a \$"),
    ({"items": [item("B1", pricing="$ free")]}, "'\\$ free' is not a price"),
    ({"items": [item("B1", pricing="$1.2.3")]}, "is not a price"),
    ({"items": [item("B1", pricing="$" + "9" * 400)]}, "is not a price"),
    ({"items": [item("B1", customization_options=["a"])]}, "options: Input should be an object"),
    ({"items": [item("B1", customization_options={"A": "b"})]}, "A: Input should be a valid array"),
    ({"items": [item("B1", customization_options={"A": [{}]})]}, "A.0.value: Field required"),
    ({"items": [[]]}, "product 1 .* in .*: Input should be an object"),
    ({"items": []}, r"items_shuffle_3.json holds no products \(passed over: 0\); fetch or"),
    ({"items": [item("nan")] * 2}, r"holds no products \(passed over: 2\)"),
    ({"items": b""}, "items_shuffle_3.json is not a JSON list of products"),
    ({"items": {"B1": item("B1")}}, "items_shuffle_3.json is not a JSON list of products"),
    ({"items": json.dumps(ITEMS).encode()[:-20]}, "or invalid JSON after product 2: .*"),
    ({"items": json.dumps(ITEMS).encode()[:-1]}, "after product 2: Expecting ']'"),
    ({"items": b'[{"asin": "\xff"}]'}, "or invalid JSON after product 0: .*'utf-8' codec"),
    ({"items": b'[{"asin": "\\ude00"}]'}, "Invalid JSON: lone leading surrogate"),
    ({"items": b'[{"asin": NaN}]'}, "invalid JSON after product 0: NaN is not JSON"),
    ({"items": json.dumps(ITEMS).encode() + b"]"}, "invalid JSON after product 3: Expecting"),
    ({"items": b'[{"asin": "nan"}, ]'}, "invalid JSON after product 1: Expecting value"),
    ({"items": b'[{"asin": "nan"} {}]'}, "invalid JSON after product 1: Expecting another product"),
    ({"items": b'[, {"asin": "nan"}]'}, "invalid JSON after product 0: Expecting value"),
    ({"items": [item(["B1"])]}, r"product 1 .*: asin: Input should be a valid string"),  # type: ignore[arg-type]
    ({"entries": json.dumps(ENTRIES).encode()[:-20]}, "items_ins_v2_3.json is truncated .*entry 2"),
    ({"entries": b'{"B1" {}}'}, "invalid JSON after entry 0: Expecting another entry or '}'"),
    ({"entries": b'{"B1": {}, "B2"}'}, "invalid JSON after entry 1: Expecting another entry"),
    ({"entries": b'{["B1"]: {}}'}, "invalid JSON after entry 0: Expecting another entry"),
    ({"entries": b'{"B1": 1'}, "invalid JSON after entry 0: Expecting '}'"),
    ({"entries": []}, "items_ins_v2_3.json is not a JSON object with an entry for each asin"),
    ({"entries": {"B1": []}}, "entry 'B1' in .*items_ins_v2_3.json: Input should be an object"),
    ({"entries": {"B1": {"attributes": "soft"}}}, "attributes: Input should be a valid array"),
    ({"entries": {"B1": {"instruction": "a"}}}, 'an "instruction" needs "instruction_attributes"'),
    (
        {"entries": {"B1": entry() | {"instruction_attributes": []}}},
        'an "instruction" needs "instruction_attributes"',
    ),
    ({"human": {"B1": {}}}, "entry 'B1' in .*items_human_ins.json: Input should be a valid array"),
    ({"human": {"B1": [{}]}}, "0.instruction: Field required"),
    ({"human": {"B1": [human_entry("a") | {"instruction_options": None}]}}, "instruction_options"),
    ({"human": b"{"}, "items_human_ins.json is truncated"),
    ({"items": b"[" * 100_000}, "after product 0: maximum recursion depth exceeded.*; fetch or"),
    ({"entries": b'{"a":' * 100_000}, "after entry 0: maximum recursion depth exceeded"),
    ({"human": b'{"B1": ' + b"[" * 100_000}, "after entry 0: maximum recursion depth exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_data_is_named(data: Path, changed: dict[str, Any], message: str) -> None:
    write_data(data, **changed)
    with pytest.raises(DataError, match=message) as raised:
        open_catalogue(data)
    assert "\n" not in str(raised.value)
    assert str(data) in str(raised.value)
    left = list((data / ".webshop-cache").iterdir())
    assert not [path for path in left if path.is_dir()]  # no partial cache


def test_what_is_no_data_directory_is_named(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    with pytest.raises(DataError, match=r"no WebShop data: give the directory .*WEBSHOP_DATA"):
        open_catalogue()
    monkeypatch.setenv("WEBSHOP_DATA", str(data / PRODUCTS))
    with pytest.raises(DataError, match=r"json \(from WEBSHOP_DATA\) is not a directory; give"):
        open_catalogue()
    monkeypatch.setenv("WEBSHOP_DATA", str(data))
    assert open_catalogue() is open_catalogue(data)
    with pytest.raises(DataError, match="is not a directory"):
        open_catalogue(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot read"):
        open_catalogue("a\0b")
    with pytest.raises(DataError, match="num_products must be at least 1, or None, not 0"):
        open_catalogue(data, num_products=0)


@pytest.mark.parametrize(("name", "pattern"), [(PRODUCTS, "shuffle"), (ATTRIBUTES, "ins_v2")])
def test_each_file_is_there_once(data: Path, name: str, pattern: str) -> None:
    shutil.copy(data / name, data / name.replace("_3", "_1000"))
    with pytest.raises(DataError, match=f"several files .*{pattern}.*1000.json, .*_3.json; keep"):
        open_catalogue(data)
    for found in data.glob(f"*{pattern}*"):
        found.unlink()
    with pytest.raises(DataError, match=rf"no items_{pattern}\*.json in .*/data; give"):
        open_catalogue(data)


def test_a_file_that_is_a_directory_is_named(data: Path) -> None:
    (data / HUMAN).unlink()
    (data / HUMAN).mkdir()
    with pytest.raises(DataError, match=r"cannot read .*items_human_ins.json: Is a directory"):
        open_catalogue(data)


@pytest.mark.parametrize("name", [PRODUCTS, ATTRIBUTES, HUMAN])
def test_a_pipe_in_place_of_a_file_does_not_block(data: Path, name: str) -> None:
    (data / name).unlink()
    os.mkfifo(data / name)
    with pytest.raises(DataError, match=f"cannot read .*{name}: Not a regular file"):
        open_catalogue(data)


def test_a_folder_that_cannot_be_read_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable folder is reported as such, not as a folder without files."""

    def refuse(path: Any) -> Any:  # root reads all folders, whatever their permissions say
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=f"cannot read '{data}': .*Permission denied"):
        find_sources(data)


# --- looking things up -------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.sampled_from(["", "a", "b", "A", "a b", "ü"])


@st.composite
def _stores(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    asins = draw(st.lists(st.text("AB19é", max_size=10), min_size=1, max_size=6, unique=True))
    items, entries, human = [], {}, {}
    for asin in asins:
        groups = draw(st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=3))
        items.append(
            item(
                asin,
                name=draw(TEXT),
                full_description=draw(TEXT),
                small_description=draw(st.one_of(TEXT, st.lists(TEXT, max_size=3))),
                pricing=draw(st.sampled_from(["", "$3", "$3 to $70.5", "$985.5", "$99"])),
                customization_options={k: [{"value": v} for v in vs] for k, vs in groups.items()},
                category=draw(WORDS),
                query=draw(WORDS),
                product_category=draw(TEXT),
            )
        )
        entries[asin] = draw(st.sampled_from([entry("x", "y z"), {"attributes": ["q"]}, {}]))
        human[asin] = [human_entry(text, text) for text in draw(st.lists(TEXT, max_size=2))]
    return items, entries, human


@given(_stores())
def test_the_catalogue_holds_what_the_files_say(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    data = write_data(tmp_path_factory.mktemp("any"), *content)
    listings = list(read_listings(find_sources(data), None, Counter()))
    found = open_catalogue(data)
    assert [found.listing(index) for index in range(len(found))] == listings
    products = [listing.product for listing in listings]
    assert list(found) == products
    for text in {text for p in products for text in (p.asin, p.category, p.query)} | {"?", ""}:
        for column in ("asin", "category", "query"):
            wanted = [product.index for product in products if getattr(product, column) == text]
            assert list(found.find(column, text)) == wanted


def test_products_are_counted_from_0(data: Path) -> None:
    found = open_catalogue(data)
    assert len(found) == 3
    assert found[np.int64(2)].index == 2
    with pytest.raises(IndexError):
        found[3]


def test_searches_are_remembered_unless_they_are_long(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = open_catalogue(data)
    assert found.search("green towel") == (0, 1, 2)
    assert found.search("the") == found.search("") == ()
    long = "green " * 400
    assert found.search(long) == (0,)
    monkeypatch.setattr(found, "_index", None)
    assert found.search("green towel") == (0, 1, 2)
    with pytest.raises(AttributeError):
        found.search(long)


def test_building_streams(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    listings = _listings(data)

    def stream(*_: Any) -> Any:
        (folder,) = (data / ".webshop-cache").glob("*.partial-*")
        for listing in listings * 700:
            yield listing
            written.append((folder / "records.jsonl").stat().st_size)

    monkeypatch.setattr(catalogue, "read_listings", stream)
    assert len(open_catalogue(data)) == 2100
    assert written[-1] > 2 * written[len(written) // 3] > 0  # is written incrementally


@given(st.lists(st.lists(TEXT | st.none() | st.integers(0, 999))), st.integers(1, 9), st.booleans())
def test_the_pieces_that_are_read_do_not_matter(value: Any, size: int, ascii_only: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(source, "_CHUNK", size)
        file.write(json.dumps(value, ensure_ascii=ascii_only).encode())
        file.flush()
        assert [element for _, element, _ in source._values(Path(file.name), "[]")] == value


def test_reading_products_streams(data: Path) -> None:
    write_data(data, items=json.dumps([*ITEMS, *([item("nan")] * 1000)]).encode()[:-9])
    listings = read_listings(find_sources(data), None, Counter())
    assert next(listings).product.asin == "B1"  # before the missing end of the file is noticed
    with pytest.raises(DataError, match="after product 1002"):
        list(listings)


def test_a_product_that_is_too_long_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file, in which a product does not end, does not fill the memory."""
    monkeypatch.setattr(source, "_CHUNK", 100)
    write_data(data, items=[item("B1"), item("B2", full_description="x" * 5000)])
    assert len(list(read_listings(find_sources(data), None, Counter()))) == 2
    monkeypatch.setattr(source, "_LONGEST_VALUE", 3000)
    with pytest.raises(DataError, match=r"invalid JSON after product 1: .*; fetch"):
        open_catalogue(data)
