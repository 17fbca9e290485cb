"""Search by Lucene itself, through pyserini where that is installed with Java and its other needs.

It ranks as :mod:`env_wrappers.webshop.bm25` does, only slower: it is there to check that one.
"""

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from env_wrappers.errors import DataError

_REMEDY = "install it with all that it needs (Java among it), or take the search 'bm25'"
_TOO_LONG = "TooManyClauses"  # Lucene's error for more than 1,024 distinct words


def build_index(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Have Lucene index documents into a folder that does not exist yet.

    Args:
        documents: identifier and text of each.
        folder: where the index goes; it appears only when it is complete.

    Raises:
        DataError: pyserini cannot be used.
    """
    _import_pyserini("pyserini.index.lucene")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        texts, index = Path(name, "texts"), Path(name, "index")
        texts.mkdir()
        with (texts / "documents.jsonl").open("w", encoding="utf-8") as file:
            for identifier, text in documents:
                file.write(json.dumps({"id": identifier, "contents": text}) + "\n")
        command = [sys.executable, "-m", "pyserini.index.lucene"]
        command += [
            "--collection",
            "JsonCollection",
            "--generator",
            "DefaultLuceneDocumentGenerator",
        ]
        command += ["--threads", "1", "--input", str(texts), "--index", str(index)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not index.is_dir():
            reason = (done.stderr.strip() or "no output").splitlines()[-1]
            raise DataError(f"pyserini could not build a search index ({reason}); {_REMEDY}")
        index.replace(folder)


class Index:
    """An index of Lucene, with the interface of ``bm25.Index``."""

    def __init__(self, searcher: Any, number_of: Callable[[str], int | None]) -> None:
        """Search with pyserini's ``LuceneSearcher``; :meth:`open` makes it."""
        self._searcher = searcher
        self._number_of = number_of

    @classmethod
    def open(cls, folder: Path, number_of: Callable[[str], int | None]) -> Self:
        """Open the index of a folder.

        Args:
            folder: what :func:`build_index` made, or an index of the original WebShop.
            number_of: a document's number by its identifier; None: not to be found here.

        Raises:
            DataError: pyserini cannot be used, or there is no index.
        """
        lucene = _import_pyserini("pyserini.search.lucene")
        try:
            return cls(lucene.LuceneSearcher(str(folder)), number_of)
        except Exception as error:  # pyjnius hands on whatever Java throws
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                f"{folder}: Lucene cannot open this index ({reason}); remove the folder to have it "
                "built again"
            ) from error

    def search(self, query: str, limit: int = 50) -> np.ndarray:
        """Return the numbers of the documents that match best, best first.

        As in the original, documents without a number leave the list shorter. A query of more than
        1,024 distinct words, which Lucene refuses, finds nothing.
        """
        try:
            hits = self._searcher.search(query, k=limit)
        except Exception as error:
            if _TOO_LONG not in str(error):
                raise
            hits = []
        numbers = (self._number_of(hit.docid) for hit in hits)
        return np.array([number for number in numbers if number is not None], dtype=np.int64)


def _import_pyserini(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # also what it raises without Java
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"pyserini cannot be used ({reason}); {_REMEDY}") from error
