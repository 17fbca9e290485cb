"""What sessions share: one shop, and Lucene's own search, where pyserini is installed."""

import errno
import importlib.util
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from env_wrappers.errors import DataError
from env_wrappers.webshop import pyserini_backend
from env_wrappers.webshop.shop import Shop, open_shop
from tests.unit.env_wrappers.webshop.webshop_store import SHIRT, play, start, write_store


def test_threads_that_open_a_store_at_once_share_it(tmp_path: Path) -> None:
    data = write_store(tmp_path / "data")
    start_together = threading.Barrier(4)

    def open_it(_: int) -> Shop:
        start_together.wait()
        return open_shop(data, nouns="words")

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(open_it, range(4)))) == 1


def test_lucene_can_search_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyserini itself is not installed here: what it would do is put in its place."""
    built, asked = [], []

    def build_index(documents: Iterable[tuple[str, str]], folder: Path) -> None:
        built.append(dict(documents))
        folder.mkdir()

    class Index:
        def search(self, query: str, limit: int) -> np.ndarray:
            asked.append((query, limit))
            return np.array([2, 1])

    monkeypatch.setattr(pyserini_backend, "build_index", build_index)
    monkeypatch.setattr(pyserini_backend.Index, "open", lambda folder, number_of: Index())
    shop = open_shop(write_store(tmp_path / "data"), nouns="words", search="pyserini")
    for _ in range(2):
        session = play(start(shop), "search[a towel]")
        assert [product.index for product in session.page.results] == [2, 1]
    assert asked == [("a towel", 50)], "the second time it is remembered"
    assert len(built) == 1
    assert built[0][SHIRT].startswith("slim cotton shirt all about")


def test_without_pyserini_its_search_is_refused(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyserini"):
        pytest.skip("pyserini is installed")
    with pytest.raises(DataError, match=r"pyserini cannot be used .*, or take the search 'bm25'"):
        open_shop(write_store(tmp_path / "data"), nouns="words", search="pyserini")


def test_an_index_of_lucene_needs_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, build: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("env_wrappers.webshop.shop.ensure_folder", refuse)
    with pytest.raises(DataError, match=r"cannot write .*lucene .*Permission denied; make it"):
        open_shop(write_store(tmp_path / "data"), nouns="words", search="pyserini")
