"""Tokenize text into search terms as Lucene's English analyzer does.

The steps are: split into Unicode words, remove a final "'s", lower-case, remove 33 stop words, and
apply Porter's stemmer. Words follow UAX #29 of Unicode 9 with Lucene's additions: an ideograph, a
Hiragana letter or an emoji sequence is a separate word, South-East Asian letters stay together, and
no word is longer than 255 UTF-16 units.

This was compared with Lucene 8 on every character of Unicode 9 and on 200,000 random strings. The
differences are characters newer than Unicode 9 (which Lucene skips), emoji joined to one of the
letters "ℹ", "Ⓜ", "🅰", "🅱", and more than 255 joining characters before a word.
"""

from bisect import bisect_right
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any

import regex

_STOPS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there
    these they this to was will with
"""
_STOP_WORDS = frozenset(_STOPS.split())
_APOSTROPHES = "'\u2019\uff07"
_LONGEST_WORD = 255  # UTF-16 units
_LONGEST_PIECE = _LONGEST_WORD // 2  # characters; short enough for one word even as surrogate pairs
_CACHED = 2**16  # pieces, and the same number of words; about 10 MB when full
_SECOND_UNIT = "\uffff"  # not a character, so in no word

# Extended_Pictographic of emoji data 11, as in Lucene; later versions removed "★" and others.
_PICTOGRAPHS = """
    A9 AE 203C 2049 2122 2139 2194-2199 21A9-21AA 231A-231B 2328 2388 23CF 23E9-23F3 23F8-23FA 24C2
    25AA-25AB 25B6 25C0 25FB-25FE 2600-2605 2607-2612 2614-2685 2690-2705 2708-2712 2714 2716 271D
    2721 2728 2733-2734 2744 2747 274C 274E 2753-2755 2757 2763-2767 2795-2797 27A1 27B0 27BF
    2934-2935 2B05-2B07 2B1B-2B1C 2B50 2B55 3030 303D 3297 3299 1F000-1F0FF 1F10D-1F10F 1F12F
    1F16C-1F171 1F17E-1F17F 1F18E 1F191-1F19A 1F1AD-1F1E5 1F201-1F20F 1F21A 1F22F 1F232-1F23A
    1F23C-1F23F 1F249-1F3FA 1F400-1F53D 1F546-1F64F 1F680-1F6FF 1F774-1F77F 1F7D5-1F7FF 1F80C-1F80F
    1F848-1F84F 1F85A-1F85F 1F888-1F88F 1F8AE-1F8FF 1F90C-1F93A 1F93C-1F945 1F947-1FFFD
"""


def _character_class(ranges: str) -> str:
    """Return ranges such as "A9 2194-2199" as a regular-expression character class."""
    ends = (part.split("-") for part in ranges.split())
    return "[" + "".join("-".join(rf"\U{int(e, 16):08x}" for e in pair) for pair in ends) + "]"


# Names as in UAX #29. _X: characters that attach to the one before.
_X = (
    r"[[\p{WB=Extend}\p{WB=Format}\u200d\u0600-\u0605\u06dd\u070f\u08e2\U000110bd]"
    r"--\p{Emoji_Modifier}]"
)
_X_IN_EMOJI = rf"[{_X}--[\ufe0e\ufe0f]]"
_HEBREW = r"\p{WB=Hebrew_Letter}"
_LETTER = (
    r"[[\p{Alphabetic}\u05f3]--"
    r"[\p{WB=Extend}\p{WB=Katakana}\p{Ideographic}\p{Script=Hiragana}\p{LB=SA}]]"
)
_DIGIT = r"[\d\u066b]"
_JOINS_BOTH = r".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_JOINS_LETTERS = rf"[{_JOINS_BOTH}:\xb7\u02d7\u0387\u05f4\u2027\ufe13\ufe55\uff1a]"
_JOINS_DIGITS = (
    rf"[{_JOINS_BOTH},;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54"
    r"\uff0c\uff1b]"
)
_JOINS_ALL = rf"(?:\p{{WB=ExtendNumLet}}{_X}*+)"
# Joining characters with nothing to join, up to a character that can begin a word.
_BARREN = (
    rf"(?:\p{{WB=ExtendNumLet}}"
    rf"[{_X}--[\u200d\p{{LB=SA}}\p{{Script=Han}}\p{{Script=Hiragana}}]]*+)++"
)
_BARREN_STRETCH = regex.compile(_BARREN, regex.VERSION1)
_RUN = rf"""(?:
    (?: \p{{WB=Katakana}} {_X}*+ )++
  | (?: {_HEBREW} {_X}*+ (?: ' {_X}*+ | " {_X}*+ {_HEBREW} {_X}*+ )
      | {_LETTER} {_X}*+ (?: {_JOINS_LETTERS} {_X}*+ {_LETTER} {_X}*+ )*+
      | {_DIGIT} {_X}*+ (?: {_JOINS_DIGITS} {_X}*+ {_DIGIT} {_X}*+ )*+
    )++
)"""
_PICTOGRAPH = rf"""(?:
    (?: \u200d*+ \p{{Emoji_Modifier_Base}} {_X_IN_EMOJI}*+ )?+ \p{{Emoji_Modifier}} {_X_IN_EMOJI}*+
  | \u200d*+ {_character_class(_PICTOGRAPHS)} {_X_IN_EMOJI}*+ \ufe0f?+
)"""
# The last branch, without the group, skips joining characters at once instead of one by one.
_WORD = regex.compile(
    rf"""
  ( {_JOINS_ALL}*+ {_RUN} (?: {_JOINS_ALL}++ {_RUN} )*+ {_JOINS_ALL}*+
  | (?: \p{{LB=SA}} {_X}*+ )++
  | [\p{{Script=Han}}\p{{Script=Hiragana}}] {_X}*+
  | {_PICTOGRAPH} (?: (?: (?<=\u200d) | \u200d ) {_PICTOGRAPH} )*+
  | [\#*] {_X_IN_EMOJI}*? \ufe0f?+ \u20e3 {_X_IN_EMOJI}*+
  | (?: \p{{WB=Regional_Indicator}} {_X}*+ ){{2}} )
  | {_BARREN}
    """,
    regex.VERBOSE | regex.VERSION1,
)


def analyze(text: str) -> list[str]:
    """Return the terms of a text in order, with repetitions.

    The time is linear in the length of the text: one or two seconds for a megabyte of distinct
    words or without spaces, at worst ten. The first call imports nltk (half a second, 90 MB), of
    which only the stemmer is used.
    """
    terms: list[str] = []
    for piece in text.split(" "):  # no word contains a space
        if len(piece) <= _LONGEST_PIECE:
            terms += _terms_of_piece(piece)
        else:
            terms += _terms(_words_of_long(piece))
    return terms


@lru_cache(maxsize=_CACHED)
def _terms_of_piece(piece: str) -> tuple[str, ...]:
    return _terms(_WORD.findall(piece))


def _terms(words: list[str]) -> tuple[str, ...]:
    return tuple(term for word in words if word and (term := _term(word)) is not None)


def _words_of_long(piece: str) -> list[str]:
    """Return the words of a piece of any length, splitting words that are too long."""
    units = [0, *accumulate(2 if character > "\uffff" else 1 for character in piece)]
    words = []
    start = 0
    while start < len(piece):
        end = bisect_right(units, units[start] + _LONGEST_WORD) - 1
        match = _WORD.match(piece, start, end)
        if match is None:
            start += 1
            continue
        if match[1]:
            words.append(match[1])
        elif match.end() == end:  # more joining characters than a word can have
            start = max(start + 1, _BARREN_STRETCH.match(piece, start).end() - _LONGEST_WORD)
            continue
        start = match.end()
    return words


@lru_cache(maxsize=_CACHED)
def _term(word: str) -> str | None:
    """Return the search term of a word, or None for a stop word."""
    if word[-1] in "sS" and word[-2:-1] and word[-2] in _APOSTROPHES:
        word = word[:-2]
    # Lower-case each character separately, as Java does: no final sigma, no dot after "İ".
    word = word.lower() if word.isascii() else "".join(c.lower()[0] for c in word)
    return None if word in _STOP_WORDS else _stem(word)


def _stem(word: str) -> str:
    """Return the Porter stem, with words counted and compared in UTF-16 units as in Lucene."""
    units = "".join(c if c <= "\uffff" else c + _SECOND_UNIT for c in word)
    return _porter().stem(units, to_lowercase=False).replace(_SECOND_UNIT, "")


@cache
def _porter() -> Any:
    from nltk.stem.porter import PorterStemmer  # imported here because nltk loads scipy.stats

    return PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)
