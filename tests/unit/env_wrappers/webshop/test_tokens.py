"""Terms of texts are Lucene's, whatever the text is."""

import json
import lzma
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.webshop.env import MAX_ACTION
from env_wrappers.webshop.tokens import analyze
from tests.paths import SHARED

TOKENS = SHARED / "parity/webshop_search_tokens.json.xz"
needs_recordings = pytest.mark.skipif(
    not TOKENS.exists(), reason="the recordings of Lucene are not part of the repository"
)
ODD_CHARACTERS = "ab1 _.:,'’\"#\u0301\u200d\ufe0f★©Ⓜカひ漢กัא👩🏽🇩𝐚İΣ\x00\t"


def _recorded(path: Path) -> Any:
    return json.loads(lzma.decompress(path.read_bytes()))


@needs_recordings
def test_500_recorded_documents_have_the_same_tokens() -> None:
    recorded = _recorded(TOKENS)
    assert len(recorded) == 500
    assert [asin for asin, text, expected in recorded if analyze(text) != expected] == []


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


@given(st.text(st.sampled_from(ODD_CHARACTERS)), st.text())
def test_a_space_parts_words(left: str, right: str) -> None:
    assert analyze(f"{left} {right}") == analyze(left) + analyze(right)


@given(st.text(st.sampled_from(ODD_CHARACTERS.replace(" ", "")), min_size=128, max_size=900))
def test_terms_are_never_blank(text: str) -> None:
    for term in analyze(text):
        assert term.strip("_. \t\x00")


@given(st.text())
def test_terms_do_not_depend_on_case(text: str) -> None:
    """But where upper case has characters of its own: "ß", "ŉ", "İ"."""
    lowered = "".join(c.lower()[0] for c in text)
    assert analyze(text) == analyze(lowered)


@pytest.mark.parametrize("text", ["_", "'", "y", "é", "😀", "a\u0301", "#\u0301", "\u200d"])
def test_long_texts_without_a_space_take_no_time(text: str) -> None:
    """Of an action's length: no regular expression runs away."""
    start = time.process_time()
    analyze((text * MAX_ACTION)[:MAX_ACTION])
    assert time.process_time() - start < 1


def test_nltk_is_imported_only_when_a_word_is_stemmed() -> None:
    code = (
        "import sys, env_wrappers.webshop.bm25; "
        "print([m for m in ('nltk', 'scipy', 'ray', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
