"""Word-based similarity of two short texts, from 0 to 100, as in the original reward.

The original uses thefuzz 0.19 without its C extension, whose ratio is that of difflib. Faster
libraries define the ratio slightly differently, which changes single options: the reward checks
whether the ratio exceeds 85.
"""

import functools
import re
from difflib import SequenceMatcher

_LATIN_1_SUPPLEMENT = re.compile("[\u0080-\u00ff]")
_NOT_IN_WORDS = re.compile(r"\W")
_TEXTS = 1 << 14  # cached texts: some megabytes
_PAIRS = 1 << 16  # cached pairs: about 20 megabytes


@functools.lru_cache(maxsize=_PAIRS)
def token_set_ratio(first: str, second: str) -> int:
    """Compare two texts as sets of words, ignoring case, order and repetition.

    Letters of the Latin-1 supplement ("é") are removed; punctuation separates words. The result is
    100 if one text contains all words of the other, and 0 if a text has no words, even if both are
    equal. Swapping the arguments can change it by a few points, as with difflib's ratio.

    Returns:
        An integer from 0 to 100.
    """
    words, others = _words(first), _words(second)
    if not words or not others:
        return 0
    common = _line(words & others)
    whole = f"{common} {_line(words - others)}".strip()
    other_whole = f"{common} {_line(others - words)}".strip()
    return max(_ratio(common, whole), _ratio(common, other_whole), _ratio(whole, other_whole))


@functools.lru_cache(maxsize=_TEXTS)
def _words(text: str) -> frozenset[str]:
    # Remove punctuation before lower(): the lower case of "İ" contains a mark that must stay.
    plain = _NOT_IN_WORDS.sub(" ", _LATIN_1_SUPPLEMENT.sub("", text))
    return frozenset(plain.lower().split())


def _line(words: frozenset[str]) -> str:
    return " ".join(sorted(words))


def _ratio(first: str, second: str) -> int:
    if first == second:  # the common case; the matcher gives the same result slowly
        return 100
    return round(100 * SequenceMatcher(None, first, second).ratio())
