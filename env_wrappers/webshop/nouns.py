"""The nouns of product titles, by which the reward tells kinds of products apart."""

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from env_wrappers.errors import DataError

EXTRACTORS = ("auto", "spacy", "words")
SPACY_MODEL = "en_core_web_sm"
_TITLES = 1 << 13  # remembered titles: some ten megabytes
_WORD = re.compile(r"[^\W\d_]+")


class NounExtractor(Protocol):
    """Finds the nouns of a title."""

    name: str
    """What finds them, with its version; a score records it."""

    def __call__(self, title: str) -> Sequence[str]:
        """The nouns and proper nouns of a title in their order, lower-cased, with repetitions."""


class _Remembering:
    """An extractor that keeps what it found for the titles seen last."""

    def __init__(self, name: str, find: Callable[[str], tuple[str, ...]]):
        self.name = name
        self._find = functools.lru_cache(maxsize=_TITLES)(find)

    def __call__(self, title: str) -> tuple[str, ...]:
        return self._find(title)


@functools.cache
def make_noun_extractor(name: str) -> NounExtractor:
    """Return the extractor of that name, one for the whole process.

    "spacy": the tags of spaCy's small English model, as in the original; each version of the model
    tags a few titles differently, so that 3 to 5 of 100 purchases get another `r_type`.
    "words": all words but those of a fixed list that are seldom nouns.
    "auto": "spacy" where the model is installed, else "words".

    Raises:
        DataError: no extractor has that name, or the model is not installed.
    """
    if name not in EXTRACTORS:
        raise DataError(f"noun extractor {name!r} is not known: choose {', '.join(EXTRACTORS)}")
    if name == "auto":
        name = "spacy" if importlib.util.find_spec(SPACY_MODEL) else "words"
    return _spacy() if name == "spacy" else _Remembering("words", _find_words)


def _spacy() -> NounExtractor:
    try:
        importlib.import_module(SPACY_MODEL)  # first: without it there is no need for slow spaCy
        import spacy

        # The parser stays: some of the model's rules for tags look at what it finds.
        model = spacy.load(SPACY_MODEL, exclude=["ner", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise DataError(
            f"noun extractor 'spacy' needs spaCy's model {SPACY_MODEL}: install it with "
            f"`python -m spacy download {SPACY_MODEL}`, or choose 'words'"
        ) from error

    def find(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in model(title) if token.pos_ in _NOUN_TAGS)

    return _Remembering(f"spacy {SPACY_MODEL} {model.meta['version']}", find)


_NOUN_TAGS = frozenset({"NOUN", "PROPN"})


def _find_words(title: str) -> tuple[str, ...]:
    return tuple(word for word in _WORD.findall(title.lower()) if word not in SELDOM_NOUNS)


SELDOM_NOUNS = frozenset(
    ("a", "an", "and", "at", "by", "for", "from", "in", "is", "of", "on", "or", "the", "to", "with")
)
