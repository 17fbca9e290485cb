"""Search through pyserini, by a stand-in: the interface, its messages, how an index is built."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from env_wrappers.errors import DataError
from env_wrappers.webshop import pyserini_backend
from env_wrappers.webshop.bm25 import Index, build_index

Documents = list[tuple[str, str]]


def _index(documents: Documents, folder: Path) -> Index:
    build_index(documents, folder)
    return Index.open(folder)


class StandIn:
    """Finds documents A, B, C ... for each word of a query; refuses the word "many"."""

    def __init__(self, folder: str) -> None:
        if not Path(folder).is_dir():
            raise RuntimeError(f"{folder} does not\nexist")

    def search(self, query: str, k: int) -> list[Any]:
        if "many" in query:
            raise RuntimeError("JVM exception: TooManyClauses")
        if "broken" in query:
            raise RuntimeError("JVM exception: OutOfMemory")
        return [SimpleNamespace(docid=chr(ord("A") + n)) for n in range(len(query.split()))][:k]


@pytest.fixture
def pyserini(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyserini", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyserini.index.lucene", SimpleNamespace())
    stand_in = SimpleNamespace(LuceneSearcher=StandIn)
    monkeypatch.setitem(sys.modules, "pyserini.search.lucene", stand_in)


@pytest.mark.usefixtures("pyserini")
def test_pyserini_has_the_same_interface(tmp_path: Path) -> None:
    index = pyserini_backend.Index.open(tmp_path, {"A": 7, "C": 0, "D": 2}.get)
    hits = index.search("four words for it")
    assert hits.tolist() == [7, 0, 2]
    assert hits.dtype.kind == "i"
    assert index.search("four words for it", 3).tolist() == [7, 0]
    assert len(index.search("")) == len(index.search("too many words")) == 0
    with pytest.raises(RuntimeError, match="OutOfMemory"):
        index.search("broken")
    with pytest.raises(DataError, match=r"cannot open this index .*does not exist"):
        pyserini_backend.Index.open(tmp_path / "missing", {}.get)


@pytest.mark.usefixtures("pyserini")
@pytest.mark.parametrize("fails", [False, True])
def test_pyserini_builds_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def run(command: list[str], **_: object) -> Any:
        options = dict(zip(command[3::2], command[4::2], strict=True))
        (text,) = Path(options["--input"]).iterdir()
        if not fails:
            Path(options["--index"]).mkdir()
            (Path(options["--index"]) / "seen").write_bytes(text.read_bytes())
        return SimpleNamespace(returncode=int(fails), stderr="Traceback\nno Java found\n")

    monkeypatch.setattr(subprocess, "run", run)
    folder = tmp_path / "cache/lucene"
    documents = [("A", "red\nshoe ★"), ("B", "")]
    if fails:
        with pytest.raises(DataError, match=r"could not build .*\(no Java found\)"):
            pyserini_backend.build_index(documents, folder)
        assert list(folder.parent.iterdir()) == []
    else:
        pyserini_backend.build_index(documents, folder)
        lines = (folder / "seen").read_text().splitlines()
        assert [tuple(json.loads(line).values()) for line in lines] == documents
        assert list(folder.parent.iterdir()) == [folder]


def test_without_pyserini_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyserini", None)
    with pytest.raises(DataError, match=r"pyserini cannot be used .*the search 'bm25'"):
        pyserini_backend.Index.open(tmp_path, {}.get)
    with pytest.raises(DataError, match="pyserini cannot be used"):
        pyserini_backend.build_index([], tmp_path / "lucene")
