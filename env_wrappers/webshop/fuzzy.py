"""How alike two short texts are by their words, from 0 to 100, as the original's reward counts it.

The original uses thefuzz 0.19 without its C extension, which is difflib's ratio. Faster libraries
define the ratio a little differently, and the reward asks whether it is above 85: with them single
options flip.
"""

import functools
import re
from difflib import SequenceMatcher

_LATIN_1_SUPPLEMENT = re.compile("[\u0080-\u00ff]")
_NOT_IN_WORDS = re.compile(r"\W")
_TEXTS = 1 << 14  # remembered texts: some megabytes
_PAIRS = 1 << 16  # remembered pairs: about 20 megabytes


@functools.lru_cache(maxsize=_PAIRS)
def token_set_ratio(first: str, second: str) -> int:
    """Compare two texts as sets of words, without regard to case, order and repetition.

    Letters of the Latin-1 supplement ("é") are dropped, signs separate words. The result is 100 if
    all words of one text are in the other, and 0 if a text has no words, even if both are equal.
    The order of the arguments can change it by a few points, as difflib's ratio does.

    Returns:
        A whole number from 0 to 100.
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
    # Signs go before the letters are made small: making "İ" small gives a sign that has to stay.
    plain = _NOT_IN_WORDS.sub(" ", _LATIN_1_SUPPLEMENT.sub("", text))
    return frozenset(plain.lower().split())


def _line(words: frozenset[str]) -> str:
    return " ".join(sorted(words))


def _ratio(first: str, second: str) -> int:
    if first == second:  # most are; the matcher gives the same, slowly
        return 100
    return round(100 * SequenceMatcher(None, first, second).ratio())
