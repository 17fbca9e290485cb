"""BM25 search with Lucene's ranking, on memory-mapped postings.

Scores equal Lucene's 32-bit floats exactly: k1 = 0.9, b = 0.4, document lengths quantised to one
byte, a word's weight multiplied by its count in the query, sums in double precision. Ties are
ordered by identifier.

An index stores words as sorted 64-bit hashes, distinct within the index. A word in no document is
mistaken for an indexed one with a probability of 1 in 2**64 per word of the index.
"""

import json
import math
import tempfile
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Self

import numpy as np

from env_wrappers.errors import DataError
from env_wrappers.files import read_json
from env_wrappers.webshop.arrays import new_array, save_array
from env_wrappers.webshop.tokens import analyze

K1 = np.float32(0.9)
B = np.float32(0.4)

FORMAT = 1
"""Version of the index format; part of the names of folders built with it."""
_SUMMARY = "index.json"
_WORDS = "words.npy"  # sorted hashes of the words
_STARTS = "starts.npy"  # first posting of each word, and the total
_DOCUMENTS = "documents.npy"  # document of each posting, ascending within a word
_OCCURRENCES = "occurrences.npy"  # word count of each posting, scaled by document length
_RANKS = "ranks.npy"  # rank of each document when ordered by identifier
_TYPES: dict[str, np.dtype] = {
    _WORDS: np.dtype(np.uint64),
    _STARTS: np.dtype(np.int64),
    _DOCUMENTS: np.dtype(np.int32),
    _OCCURRENCES: np.dtype(np.float32),
    _RANKS: np.dtype(np.int32),
}
_BLOCK = 4_000_000  # tokens counted per block

_EXACT_LENGTHS = 24
_MANTISSA_BITS = 4


@dataclass(frozen=True)
class _Summary:
    """Metadata of an index."""

    format: int
    documents: int
    documents_with_words: int
    words: int
    postings: int
    salt: int
    """Salt of the hashes."""


def build_index(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Build an index of documents in a folder, which is created if necessary.

    This takes about 8 bytes of disk per posting (20 during the build), and memory for the distinct
    words. An existing index is replaced.

    Args:
        documents: identifier and text of each document, in order of their numbers.
        folder: target folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as name:
        scratch = Path(name)
        counted = _Counted(scratch)
        for identifier, text in documents:
            counted.add(identifier, analyze(text))
        summary = _write_arrays(counted, scratch)
        (scratch / _SUMMARY).write_text(json.dumps(asdict(summary)), encoding="utf-8")
        (folder / _SUMMARY).unlink(missing_ok=True)
        for file in (*_TYPES, _SUMMARY):  # the summary last: it marks the index as complete
            (scratch / file).replace(folder / file)


class Index:
    """An index on disk; its searches are thread-safe."""

    def __init__(self, summary: _Summary, arrays: dict[str, np.ndarray]) -> None:
        """Use these arrays; :meth:`open` maps those of a folder."""
        self._summary = summary
        self._words = arrays[_WORDS]
        self._starts = arrays[_STARTS]
        self._documents = arrays[_DOCUMENTS]
        self._occurrences = arrays[_OCCURRENCES]
        self._ranks = arrays[_RANKS]
        self._scores = np.zeros(summary.documents)  # all 0 between searches
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the index of a folder, read-only.

        Raises:
            DataError: the index is missing, incomplete, or of another version.
        """
        try:
            summary = _Summary(**read_json(folder / _SUMMARY))
            if summary.format != FORMAT:
                raise ValueError(f"format {summary.format} instead of {FORMAT}")
            return cls(summary, {name: _map(folder, name, summary) for name in _TYPES})
        except (OSError, EOFError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"{folder}: no usable search index ({reason}); remove the folder to have it built "
                "again"
            ) from error

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._summary.documents

    def search(self, query: str, limit: int = 50) -> np.ndarray:
        """Return the numbers of the best-matching documents, best first.

        All words count; the time for a long query is bounded by analysing it and adding up all
        postings once.

        Args:
            query: any text; a document matches if it contains one of the words.
            limit: maximum number of documents returned, at least 1.
        """
        counts = Counter(analyze(query))
        with self._lock:
            try:
                for row, times in self._rows(counts):
                    self._add(row, times)
                return self._best(limit)
            finally:
                self._scores.fill(0)

    def _rows(self, counts: Counter[str]) -> Iterator[tuple[int, int]]:
        """Yield the index positions of the known words, with their counts."""
        hashes = _hashes(counts, self._summary.salt)
        rows = np.searchsorted(self._words, hashes)
        for row, value, times in zip(rows.tolist(), hashes, counts.values(), strict=True):
            if row < self._summary.words and self._words[row] == value:
                yield row, times

    def _add(self, row: int, times: int) -> None:
        """Add a word's score to its documents."""
        start, end = self._starts[row], self._starts[row + 1]
        having = int(end - start)
        lacking = self._summary.documents_with_words - having
        rarity = np.float32(math.log(1 + (lacking + 0.5) / (having + 0.5)))
        weight = np.float32(times) * rarity
        # Lucene's form of weight * x / (1 + x); rounding makes the two differ.
        score = weight - weight / (np.float32(1) + self._occurrences[start:end])
        self._scores[self._documents[start:end]] += score

    def _best(self, limit: int) -> np.ndarray:
        found = np.flatnonzero(self._scores)
        scores = self._scores[found].astype(np.float32)
        ranks = self._ranks[found]
        if len(found) > limit:
            chosen = _choose(scores, ranks, limit)
            found, scores, ranks = found[chosen], scores[chosen], ranks[chosen]
        return found[np.lexsort((ranks, -scores))]


def _choose(scores: np.ndarray, ranks: np.ndarray, limit: int) -> np.ndarray:
    """Return the unordered positions of the `limit` highest scores; lower ranks win ties."""
    last = np.partition(scores, -limit)[-limit]
    better = np.flatnonzero(scores > last)
    equal = np.flatnonzero(scores == last)
    wanted = limit - len(better)
    if len(equal) > wanted:  # common: documents of equal length that contain a word once
        equal = equal[np.argpartition(ranks[equal], wanted - 1)[:wanted]]
    return np.concatenate((better, equal))


def quantise_length(length: int) -> int:
    """Return the length that Lucene stores for a document with this many words.

    Lucene uses one byte: short lengths are exact, longer ones keep four binary digits.
    """
    rest = length - _EXACT_LENGTHS
    dropped = max(rest.bit_length() - _MANTISSA_BITS, 0)
    return length if rest < 0 else _EXACT_LENGTHS + (rest >> dropped << dropped)


class _Counted:
    """Word counts of documents, written block by block to files in a folder."""

    def __init__(self, scratch: Path) -> None:
        self.identifiers: list[str] = []
        self.lengths = array("I")
        self.vocabulary: defaultdict[str, int] = defaultdict(count().__next__)
        self._scratch = scratch
        self._blocks = 0
        self._pending = array("I")  # word numbers
        self._pending_from = 0  # number of their first document

    def add(self, identifier: str, terms: list[str]) -> None:
        self.identifiers.append(identifier)
        self.lengths.append(len(terms))
        self._pending.extend(map(self.vocabulary.__getitem__, terms))
        if len(self._pending) >= _BLOCK:
            self._flush()

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield arrays of words, documents and counts, ordered by word, then document."""
        self._flush()
        for number in range(self._blocks):
            yield np.load(self._block(number))

    def _flush(self) -> None:
        if not self._pending:
            return
        first, end = self._pending_from, len(self.identifiers)
        lengths = np.array(self.lengths[first:end])
        documents = np.repeat(np.arange(end - first, dtype=np.uint64), lengths)
        keys = np.array(self._pending, dtype=np.uint64) * np.uint64(end - first) + documents
        keys, counts = np.unique(keys, return_counts=True)
        words, documents = np.divmod(keys, np.uint64(end - first))
        block = np.stack((words, documents + np.uint64(first), counts.astype(np.uint64)))
        save_array(self._block(self._blocks), block.astype(np.uint32))
        self._blocks += 1
        self._pending = array("I")
        self._pending_from = end

    def _block(self, number: int) -> Path:
        return self._scratch / f"block-{number}.npy"


def _write_arrays(counted: _Counted, folder: Path) -> _Summary:
    """Write all arrays: words sorted by hash, postings sorted by document."""
    salt, hashes = _distinct_hashes(counted.vocabulary)
    order = np.argsort(hashes)
    frequencies = np.zeros(len(hashes), dtype=np.int64)
    for words, _, _ in counted.blocks():
        frequencies += np.bincount(words, minlength=len(hashes))
    starts = np.concatenate(([0], np.cumsum(frequencies[order])))
    save_array(folder / _WORDS, hashes[order])
    save_array(folder / _STARTS, starts)
    save_array(folder / _RANKS, _ranks(counted.identifiers))
    next_free = np.empty_like(frequencies)
    next_free[order] = starts[:-1]
    _write_postings(counted, folder, next_free, int(starts[-1]))
    lengths = np.array(counted.lengths)
    return _Summary(
        format=FORMAT,
        documents=len(lengths),
        documents_with_words=int(np.count_nonzero(lengths)),
        words=len(hashes),
        postings=int(starts[-1]),
        salt=salt,
    )


def _write_postings(counted: _Counted, folder: Path, next_free: np.ndarray, postings: int) -> None:
    """Write the postings of each block to their words' positions; modifies ``next_free``."""
    if not postings:  # an empty file cannot be mapped
        for name in (_DOCUMENTS, _OCCURRENCES):
            save_array(folder / name, np.empty(0, dtype=_TYPES[name]))
        return
    documents = new_array(folder / _DOCUMENTS, _TYPES[_DOCUMENTS], postings)
    occurrences = new_array(folder / _OCCURRENCES, _TYPES[_OCCURRENCES], postings)
    scale = _inverse_norms(np.array(counted.lengths))
    for words, numbers, counts in counted.blocks():
        runs = np.flatnonzero(np.diff(words, prepend=words[0] + 1))
        sizes = np.diff(runs, append=len(words))
        within = np.arange(len(words)) - np.repeat(runs, sizes)
        places = next_free[words] + within
        documents[places] = numbers
        occurrences[places] = counts.astype(np.float32) * scale[numbers]
        next_free[words[runs]] += sizes
    documents.flush()
    occurrences.flush()


def _inverse_norms(lengths: np.ndarray) -> np.ndarray:
    """Return each document's factor for word counts, in Lucene's arithmetic."""
    with_words = max(int(np.count_nonzero(lengths)), 1)
    average = np.float32(max(int(lengths.sum(dtype=np.int64)), 1) / with_words)
    distinct, which = np.unique(lengths, return_inverse=True)
    kept = np.array([quantise_length(length) for length in distinct.tolist()], dtype=np.float32)
    one = np.float32(1)
    return (one / (K1 * ((one - B) + B * kept / average)))[which]


def _distinct_hashes(words: Iterable[str]) -> tuple[int, np.ndarray]:
    """Return a salt for which no two words have the same hash, and the hashes."""
    for salt in count():
        hashes = _hashes(words, salt)
        if len(np.unique(hashes)) == len(hashes):
            return salt, hashes
    raise AssertionError("unreachable")


def _hashes(words: Iterable[str], salt: int) -> np.ndarray:
    key = salt.to_bytes(8, "little")
    digests = (blake2b(word.encode(), digest_size=8, salt=key).digest() for word in words)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _ranks(identifiers: list[str]) -> np.ndarray:
    """Return each identifier's rank; Lucene's byte order equals character order."""
    ranks = np.empty(len(identifiers), dtype=np.int32)
    ranks[sorted(range(len(identifiers)), key=identifiers.__getitem__)] = np.arange(
        len(identifiers)
    )
    return ranks


def _map(folder: Path, name: str, summary: _Summary) -> np.ndarray:
    """Map an array of an index; raise ValueError if its shape or type is not as expected."""
    size = {
        _WORDS: summary.words,
        _STARTS: summary.words + 1,
        _RANKS: summary.documents,
        _DOCUMENTS: summary.postings,
        _OCCURRENCES: summary.postings,
    }[name]
    mapped = np.load(folder / name, mmap_mode="r" if size else None, allow_pickle=False)
    if mapped.shape != (size,) or mapped.dtype != _TYPES[name]:
        found = f"{mapped.dtype} {mapped.shape}"
        raise ValueError(f"{name}: {found} instead of {_TYPES[name]} ({size},)")
    return np.asarray(mapped)  # slicing an np.memmap is slow
