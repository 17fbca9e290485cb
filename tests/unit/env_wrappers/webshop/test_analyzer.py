"""The terms of any text equal Lucene's."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.webshop import analyzer
from env_wrappers.webshop.analyzer import analyze
from tests.unit.env_wrappers.webshop.webshop_store import recorded

ODD_CHARACTERS = "ab1 _.:,'’\"#\u0301\u200d\ufe0f★©Ⓜカひ漢กัא👩🏽🇩𝐚İΣ\x00\t"


def test_500_recorded_documents_have_the_same_tokens() -> None:
    documents = recorded("webshop_search_tokens")
    assert len(documents) == 500
    assert [asin for asin, text, expected in documents if analyze(text) != expected] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # as Lucene 8 answered
        ("Running shoes, the women's geology is 1,000.5", "run shoe women geologi 1,000.5"),
        ("O'Neil’s dogs’ a.b.c 1.b a_1.5_ x:y 3;4 - _", "o'neil dog a.b.c 1 b a_1.5_ x:y 3;4"),
        ("caresses ponies relational hopping a us", "caress poni relat hop us"),
        (
            "naïve ΟΔΟΣ İstanbul ＦＵＬＬ１２ cafe\u0301s",
            "naïv οδοσ istanbul ｆｕｌｌ１２ cafe\u0301",
        ),
        ("漢字 ひら カタカナkカ x_カ ไทยกัน 한국어", "漢 字 ひ ら カタカナ k カ x_カ ไทยกัน 한국어"),
        ("★ ©x 👍🏽 🇩🇪🇫🇷🇬 #️⃣ 1️⃣ ♥\ufe0e", "★ © x 👍🏽 🇩🇪 🇫🇷 #️⃣ 1️⃣ ♥"),
        ("👩\u200d👩\u200d👧 \u200d\u200d★ \u200d🏽 _ั_", "👩\u200d👩\u200d👧 \u200d\u200d★ 🏽 ั"),
        ("soft\u00adhyphen ab\x00cd no\u202fbreak x˗y", "soft\u00adhyphen ab cd no\u202fbreak x˗y"),
        ('א"ב ג\' ב.ג" a\u0600b', "א\"ב ג' ב.ג a\u0600b"),
        ("𝐚s y yy yyy yyyyed", "𝐚 y yy yyi yyyi"),
        ("the THE not a's", ""),
        ("", ""),
    ],
)
def test_lucene_says_the_same(text: str, expected: str) -> None:
    assert analyze(text) == expected.split(" " if expected else None)


def test_words_too_long_for_lucene_are_cut() -> None:
    def sizes(text: str) -> list[int]:
        return list(map(len, analyze(text)))

    assert sizes("x" * 1000) == [255, 255, 255, 235]
    assert sizes("𝐱" * 200) == [127, 73]  # two UTF-16 units each
    assert sizes("x" * 254 + "'yz") == [254, 2]
    assert sizes("_" * 300 + "z " + "_" * 300) == [255]
    assert sizes("x" * 120 + "_" * 300 + "z") == [255, 166]


@given(st.text(st.sampled_from(ODD_CHARACTERS)), st.text())
def test_a_space_parts_words(left: str, right: str) -> None:
    assert analyze(f"{left} {right}") == analyze(left) + analyze(right)


@given(st.text(st.sampled_from(ODD_CHARACTERS.replace(" ", "")), max_size=60))
def test_long_pieces_are_read_as_short_ones(piece: str) -> None:
    assert analyzer._words_of_long(piece) == [w for w in analyzer._WORD.findall(piece) if w]


@given(st.text(st.sampled_from(ODD_CHARACTERS.replace(" ", "")), min_size=128, max_size=900))
def test_terms_are_never_long_or_blank(text: str) -> None:
    for term in analyze(text):
        assert 0 < len(term.encode("utf-16-le")) // 2 <= 255
        assert term.strip("_. \t\x00")


@given(st.text())
def test_terms_do_not_depend_on_case(text: str) -> None:
    """Terms do not depend on case, except for characters such as "ß", "ŉ" and "İ"."""
    lowered = "".join(c.lower()[0] for c in text)
    assert analyze(text) == analyze(lowered)


@pytest.mark.parametrize("text", ["_", "'", "y", "é", "😀", "a\u0301", "#\u0301", "\u200d"])
def test_long_texts_without_a_space_take_no_time(text: str) -> None:
    """Analyzing a long text without spaces does not take quadratic time."""
    start = time.process_time()
    analyze(text * 300_000)
    assert time.process_time() - start < 3


def test_nltk_is_imported_only_when_a_word_is_stemmed() -> None:
    code = (
        "import sys, env_wrappers.webshop.bm25; "
        "print([m for m in ('nltk', 'scipy', 'ray', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
