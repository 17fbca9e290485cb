"""BM25 search with Lucene's ranking, on memory-mapped postings.

Scores equal Lucene's 32-bit floats exactly: k1 = 0.9, b = 0.4, document lengths quantized to one
byte, a word's weight multiplied by its count in the query, sums in double precision. Ties are
ordered by identifier.

An index stores words as sorted 64-bit hashes. Two words are mistaken for each other with a
probability of 1 in 2**64.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from itertools import count
from pathlib import Path

import numpy as np

from env_wrappers.webshop.analyzer import analyze
from env_wrappers.webshop.cache import load_array, save_array

K1 = np.float32(0.9)
B = np.float32(0.4)

_EXACT_LENGTHS = 24
_MANTISSA_BITS = 4


def build_index(documents: Iterable[tuple[str, str]], folder: Path) -> None:
    """Write an index of documents into a new folder.

    This takes about 8 bytes of disk per posting, and 20 bytes of memory per word of the texts.

    Args:
        documents: identifier and text of each document, in order of their numbers.
        folder: folder to create.
    """
    from scipy.sparse import csr_array  # here because only building needs it

    identifiers: list[str] = []
    vocabulary: defaultdict[str, int] = defaultdict(count().__next__)
    words, ends = array("i"), array("q", [0])
    for identifier, text in documents:
        identifiers.append(identifier)
        words.extend(map(vocabulary.__getitem__, analyze(text)))
        ends.append(len(words))
    hashes = text_hashes(vocabulary)
    order = np.argsort(hashes)
    places = np.argsort(order).astype(np.int32)  # position of each word among the sorted hashes
    # The order of identifiers decides between equal scores. Lucene's byte order equals character
    # order.
    numbers = np.array(sorted(range(len(identifiers)), key=identifiers.__getitem__), np.int32)
    counts = csr_array(
        (np.ones(len(words), np.float32), places[np.array(words)], np.array(ends)),
        shape=(len(identifiers), len(hashes)),
    )[numbers].tocsc()
    counts.sum_duplicates()
    lengths = np.diff(ends)[numbers]
    folder.mkdir()
    save_array(folder / "words.npy", hashes[order])
    filled = int(np.count_nonzero(lengths))
    save_array(folder / "weights.npy", _weights(np.diff(counts.indptr), filled))
    save_array(folder / "starts.npy", counts.indptr)
    save_array(folder / "documents.npy", counts.indices)
    scaled = counts.data * _inverse_norms(lengths)[counts.indices]
    save_array(folder / "occurrences.npy", scaled)
    save_array(folder / "numbers.npy", numbers)


class Index:
    """An index on disk; its searches are thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Map the index of a folder, read-only.

        Raises:
            OSError, ValueError: a file is missing or damaged.
        """
        self._words = load_array(folder / "words.npy")  # sorted hashes of the words
        self._weights = load_array(folder / "weights.npy")  # weight of each word
        self._starts = load_array(folder / "starts.npy")  # first posting of each word, and the end
        # Per posting: the document, in the order of identifiers, and the count over its length.
        self._documents = load_array(folder / "documents.npy")
        self._occurrences = load_array(folder / "occurrences.npy")
        self._numbers = load_array(folder / "numbers.npy")  # of documents, in that order

    def search(self, query: str, limit: int) -> tuple[int, ...]:
        """Return the numbers of the best-matching documents, best first.

        All words count; the time for a long query is bounded by analyzing it and adding up all
        postings once.

        Args:
            query: any text; a document matches if it contains one of the words.
            limit: maximum number of documents returned, at least 1.
        """
        counts = Counter(analyze(query))
        hashes = text_hashes(counts)
        documents, scores = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        rows = np.searchsorted(self._words, hashes).tolist()
        for row, value, times in zip(rows, hashes, counts.values(), strict=True):
            if row < len(self._words) and self._words[row] == value:
                start, end = self._starts[row], self._starts[row + 1]
                weight = np.float32(times) * self._weights[row]
                documents.append(self._documents[start:end])
                # Lucene's form of weight * x / (1 + x); rounding makes the two differ.
                factors = np.float32(1) + self._occurrences[start:end]
                scores.append(weight - weight / factors)
        totals = np.bincount(np.concatenate(documents), np.concatenate(scores))  # in float64
        found = np.flatnonzero(totals)
        best = totals[found].astype(np.float32)
        if len(found) > limit:
            last = np.partition(best, -limit)[-limit]
            above, equal = np.flatnonzero(best > last), np.flatnonzero(best == last)
            chosen = np.concatenate((above, equal))[:limit]
            found, best = found[chosen], best[chosen]
        ranked = found[np.argsort(-best, kind="stable")]
        return tuple(self._numbers[ranked].tolist())


def quantize_length(length: int) -> int:
    """Return the length that Lucene stores for a document with this many words.

    Lucene uses one byte: short lengths are exact, longer ones keep four binary digits.
    """
    rest = length - _EXACT_LENGTHS
    dropped = max(rest.bit_length() - _MANTISSA_BITS, 0)
    return length if rest < 0 else _EXACT_LENGTHS + (rest >> dropped << dropped)


def _weights(having: np.ndarray, documents: int) -> np.ndarray:
    """Return the weights of words by the number of documents that contain them."""
    weights = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in having.tolist()]
    return np.array(weights, dtype=np.float32)


def _inverse_norms(lengths: np.ndarray) -> np.ndarray:
    """Return each document's factor for word counts, in Lucene's arithmetic."""
    with_words = max(int(np.count_nonzero(lengths)), 1)
    average = np.float32(max(int(lengths.sum()), 1) / with_words)
    distinct, which = np.unique(lengths, return_inverse=True)
    kept = np.array([quantize_length(length) for length in distinct.tolist()], dtype=np.float32)
    one = np.float32(1)
    return (one / (K1 * ((one - B) + B * kept / average)))[which]


def text_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return a 64-bit hash of each text."""
    digests = [
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8")
