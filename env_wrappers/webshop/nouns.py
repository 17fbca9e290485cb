"""Extract the nouns of product titles, which the reward uses to compare kinds of products."""

import functools
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from env_wrappers.errors import DataError, check_known

EXTRACTORS = ("auto", "spacy", "words")
SPACY_MODEL = "en_core_web_sm"
_TITLES = 1 << 13  # cached titles: some ten megabytes
_WORD = re.compile(r"[^\W_]+")
_NOUN_TAGS = ("NOUN", "PROPN")


@dataclass(frozen=True)
class NounExtractor:
    """Extracts the nouns of a title."""

    name: str
    """Name and version, which a score records."""
    find: Callable[[str], Sequence[str]]
    """Returns the nouns and proper nouns in order, lower-cased, with repetitions."""


@functools.cache
def make_noun_extractor(name: str) -> NounExtractor:
    """Return the extractor of that name, shared within the process.

    "spacy": the tags of spaCy's small English model, as in the original; each version of the model
    tags a few titles differently, which changes `r_type` in 3 to 5 of 100 purchases.
    "words": all words except those that are seldom nouns, by a fixed list and by their endings. It
    changes the original's `r_type` (model 3.6.0) in about 5 of 100 purchases among the first ten
    results for a goal, and in about 2 of 100 random purchases.
    "auto": "spacy" if the model is installed, otherwise "words".

    Raises:
        DataError: the name is unknown, or the model is not installed.
    """
    check_known("noun extractor", name, EXTRACTORS)
    if name == "auto":
        name = "spacy" if importlib.util.find_spec(SPACY_MODEL) else "words"
    return _spacy() if name == "spacy" else NounExtractor("words", _find_words)


def _spacy() -> NounExtractor:
    try:
        # Keep the parser: some of the model's tag rules use its output.
        model = importlib.import_module(SPACY_MODEL).load(exclude=["ner", "lemmatizer"])
    except (ImportError, OSError) as error:
        raise DataError(
            f"noun extractor 'spacy' needs spaCy's model {SPACY_MODEL}: install it with "
            f"`python -m spacy download {SPACY_MODEL}`, or choose 'words'"
        ) from error

    @functools.lru_cache(maxsize=_TITLES)
    def find(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in model(title) if token.pos_ in _NOUN_TAGS)

    return NounExtractor(f"spacy {SPACY_MODEL} {model.meta['version']}", find)


# spaCy splits "28g" into a number and a unit, but not "10pcs".
_UNIT = re.compile(r"^\d+(?=(?:km|m|dm|cm|mm|nm|ft|kg|g|mg|lb|oz|kb|mb|gb|tb)$)")
_SINGLE_LETTERS = frozenset("gkt")  # gram, thousand, T-shirt; others are sizes and list items
_ADJECTIVE = re.compile(r".{3,}(able|ible|less|ous|ive|ish|est|ed|ly|al|ic|proof)")
_LISTS = json.loads(resources.files(__package__).joinpath("seldom_nouns.json").read_bytes())
_NEVER, _SELDOM = frozenset(_LISTS["always"]), frozenset(_LISTS["in_small_letters"])


@functools.lru_cache(maxsize=_TITLES)
def _find_words(title: str) -> tuple[str, ...]:
    found = []
    for raw in _WORD.findall(title):
        written = _UNIT.sub("", raw)
        word = written.lower()
        if written.isnumeric() or word in _NEVER:
            continue
        if len(word) == 1 and word not in _SINGLE_LETTERS:
            continue
        # spaCy tags most capitalized words as names.
        if not written[0].isupper() and (word in _SELDOM or _ADJECTIVE.fullmatch(word)):
            continue
        found.append(word)
    return tuple(found)
