"""The ranking of the search equals Lucene's for any documents and query."""

import math
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.webshop.analyzer import analyze
from env_wrappers.webshop.bm25 import Index, build_index, quantize_length
from env_wrappers.webshop.catalogue import searchable_text
from env_wrappers.webshop.source import find_sources, read_listings
from tests.unit.env_wrappers.webshop.webshop_store import recorded

MEGABYTE = 1_000_000

Documents = list[tuple[str, str]]


def _index(documents: Documents, folder: Path) -> Index:
    build_index(documents, folder / "index")
    return Index(folder / "index")


# --- ranking


def test_1500_recorded_queries_find_the_same_products_in_order(
    real_data: Path, tmp_path: Path
) -> None:
    listings = read_listings(find_sources(real_data), None, Counter())
    documents = [(item.product.asin, searchable_text(item.product)) for item in listings]
    index = _index(documents, tmp_path)
    queries = recorded("webshop_search_hits")
    assert len(queries) == 1500
    different = [
        query
        for query, expected in queries
        if [documents[number][0] for number in index.search(query, 50)] != expected
    ]
    assert different == []


def _decode_length(byte: int) -> int:
    """Return the document length that a byte in Lucene's encoding stands for."""
    if byte < 24:
        return byte
    mantissa, exponent = (byte - 24) & 7, (byte - 24) >> 3
    return 24 + (mantissa if exponent == 0 else (mantissa | 8) << (exponent - 1))


LENGTHS = [_decode_length(byte) for byte in range(256)]


@given(st.integers(0, 2**31 - 1))
def test_a_length_is_the_greatest_below_that_fits_a_byte(length: int) -> None:
    assert quantize_length(length) == max(n for n in LENGTHS if n <= length)


def test_lengths_that_fit_are_kept() -> None:
    assert LENGTHS[:42] == [*range(40), 40, 42]
    assert len(set(LENGTHS)) == 256
    assert list(map(quantize_length, LENGTHS)) == LENGTHS


def _brute_force(documents: Documents, query: str, limit: int) -> list[int]:
    """Return the ranking by Lucene's formulas, one document and one word at a time."""
    f = np.float32
    counted = [Counter(analyze(text)) for _, text in documents]
    lengths = [sum(counts.values()) for counts in counted]
    having_words = sum(length > 0 for length in lengths)
    average = f(sum(lengths) / max(having_words, 1))
    scored = []
    for number, (identifier, _) in enumerate(documents):
        length = f(max(n for n in LENGTHS if n <= lengths[number]))
        total = 0.0
        for word, times in Counter(analyze(query)).items():
            if not counted[number][word]:
                continue
            having = sum(word in counts for counts in counted)
            rarity = f(math.log(1 + (having_words - having + 0.5) / (having + 0.5)))
            inverse = f(1) / (f(0.9) * ((f(1) - f(0.4)) + f(0.4) * length / average))
            weight = f(times) * rarity
            total += float(weight - weight / (f(1) + f(counted[number][word]) * inverse))
        if total > 0:
            scored.append((-f(total), identifier.encode(), number))
    return [number for _, _, number in sorted(scored)[:limit]]


words = st.sampled_from([*"abcdefgh", "running", "run", "the", "★", "B0", "1,5"])
texts = st.builds(
    lambda some, times: " ".join(some * times), st.lists(words, max_size=8), st.integers(1, 9)
)
identifiers = st.lists(st.text(st.sampled_from("ABab01é漢😀")), unique=True, max_size=25)
corpora = identifiers.flatmap(
    lambda ids: st.tuples(*(st.tuples(st.just(i), texts) for i in ids)).map(list)
)


@given(corpora, st.lists(texts, max_size=4), st.integers(1, 30))
def test_brute_force_agrees(documents: Documents, queries: list[str], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = _index(documents, Path(folder))
        for query in queries:
            found = list(index.search(query, limit))
            assert found == _brute_force(documents, query, limit)


def test_brute_force_agrees_on_longer_documents(tmp_path: Path) -> None:
    rng = random.Random(3)
    vocabulary = [f"w{number}" for number in range(60)]
    weights = [1 / (number + 1) for number in range(60)]
    documents = [
        (f"B{rng.randrange(10**6):06}", " ".join(rng.choices(vocabulary, weights, k=size)))
        for size in [*range(0, 120, 2), *(rng.randrange(1, 700) for _ in range(60))]
    ]
    index = _index(documents, tmp_path)
    for _ in range(40):
        query = " ".join(rng.choices(vocabulary, k=rng.randrange(1, 9)))
        assert list(index.search(query, 50)) == _brute_force(documents, query, 50)


def test_equal_scores_are_ordered_by_identifier(tmp_path: Path) -> None:
    """Equal scores are ordered by code points of the identifier, also where the limit cuts."""
    ids = ["B9", "B10", "b1", "A", "\uffee", "😀", "é"]
    index = _index([(name, "red shoe") for name in ids], tmp_path)
    expected = sorted(range(len(ids)), key=lambda number: ids[number])
    for limit in range(1, 9):
        assert list(index.search("shoe", limit)) == expected[:limit]


def test_threads_share_an_index(tmp_path: Path) -> None:
    rng = random.Random(1)
    documents = [(f"{n:04}", " ".join(rng.choices("abcdefghij", k=9))) for n in range(3000)]
    index = _index(documents, tmp_path)
    queries = ["b c", "d", "e f g", "h h i", "j"] * 20
    expected = [index.search(query, 50) for query in queries]
    differences: list[str] = []

    def work() -> None:
        for query, hits in zip(queries, expected, strict=True):
            if index.search(query, 50) != hits:
                differences.append(query)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert differences == []


@pytest.mark.parametrize("query", ["", " ", "the of and", "unknown", "\x00\x1b[0m", "\ud800", "?!"])
def test_queries_without_a_known_word_find_nothing(tmp_path: Path, query: str) -> None:
    assert _index([("A", "red shoe"), ("B", "")], tmp_path).search(query, 50) == ()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("red " * (MEGABYTE // 4), 1),
        pytest.param(" ".join(map(str, range(MEGABYTE // 7))), 50, marks=pytest.mark.slow),
        ("red" + "\n漢" * (MEGABYTE // 4), 2),
    ],
    ids=["one word", "all different", "no space"],
)
def test_a_query_of_a_megabyte_takes_seconds(tmp_path: Path, query: str, found: int) -> None:
    numbers = [(f"{n:05}", f"number {n}") for n in range(2000)]
    index = _index([("A", "red shoe"), ("B", "漢 hat"), *numbers], tmp_path)
    start = time.process_time()
    assert len(index.search(query, 50)) == found
    assert time.process_time() - start < 10


def test_a_word_given_twice_counts_twice(tmp_path: Path) -> None:
    index = _index([("A", "red hat"), ("B", "blue hat")], tmp_path)
    assert index.search("red blue blue", 50) == (1, 0)
    assert index.search("red red blue", 50) == (0, 1)


# --- files


@pytest.mark.parametrize("documents", [[], [("A", "")], [("A", ""), ("B", "the")]])
def test_nothing_to_find(tmp_path: Path, documents: Documents) -> None:
    index = _index(documents, tmp_path)
    assert index.search("shoe", 50) == ()


def test_the_same_documents_give_the_same_bytes(tmp_path: Path) -> None:
    documents = [(f"{n}", f"shoe {n % 7} {'x ' * n}") for n in range(50)]
    build_index(documents, tmp_path / "one")
    build_index(iter(documents), tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


@pytest.mark.parametrize("damage", [Path.unlink, _truncate, Path.touch])
@pytest.mark.parametrize("name", ["starts.npy", "documents.npy", "numbers.npy"])
def test_a_damaged_index_is_refused(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "index"
    build_index([("A", "red shoe")], folder)
    if damage is Path.touch:  # an empty file
        (folder / name).unlink()
    damage(folder / name)
    with pytest.raises((OSError, ValueError)):
        Index(folder)
