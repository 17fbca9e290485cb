"""The words of generated stores, from vocabulary.json."""

import functools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

VOCABULARY: Mapping[str, Any] = json.loads(
    resources.files(__package__).joinpath("vocabulary.json").read_bytes()
)
RANDOM_WORDS: Mapping[str, Sequence[Any]] = {
    "noun": " ".join(VOCABULARY["nouns"]).split(),
    "adjective": " ".join(VOCABULARY["adjectives"]).split(),
    "number": range(2, 1000),
}
"""Words that no instruction is about."""

_WORD = re.compile("[a-z]+")
_GAP = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    Attributes:
        name: name of the kind; also the query that finds such products.
        department: one of the store's five departments.
        path: path in the category tree.
        singular: whether the name takes "a" or "an".
        materials: possible materials.
        traits: attributes that are adjectives.
        parts: attributes that follow "with".
        purposes: attributes that follow "for".
        options: possible option groups, with all values in display order.
        price: lowest and highest price in dollars.
    """

    name: str
    department: str
    path: str
    singular: bool
    materials: tuple[str, ...]
    traits: tuple[str, ...]
    parts: tuple[str, ...]
    purposes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    price: Sequence[float]

    def phrase(self, attribute: str) -> str:
        """Return an attribute with the preposition that it needs after the name of a product."""
        if attribute in self.parts:
            return f"with {attribute}"
        return f"for {attribute}" if attribute in self.purposes else attribute


@functools.cache
def kinds() -> Mapping[str, tuple[Kind, ...]]:
    """Return the kinds of products by department."""

    def read(department: str, root: str, kind: Mapping[str, Any]) -> Kind:
        groups = (VOCABULARY["options"][name] for name in kind["options"])
        return Kind(
            name=kind["name"],
            department=department,
            path=f"{root} › {kind['path']}",
            singular=kind.get("one", False),
            materials=tuple(kind["materials"]),
            traits=tuple(VOCABULARY["traits"][kind["pool"]]),
            parts=(*VOCABULARY["parts"][kind["pool"]], *VOCABULARY["extras"]),
            purposes=tuple(VOCABULARY["purposes"][kind["pool"]]),
            options={group["group"]: tuple(group["values"]) for group in groups},
            price=kind["price"],
        )

    return {
        name: tuple(read(name, department["root"], kind) for kind in department["kinds"])
        for name, department in VOCABULARY["departments"].items()
    }


def request_words() -> frozenset[str]:
    """Return the words of instructions that say nothing about the product."""
    texts = (*VOCABULARY["greetings"], *VOCABULARY["reasons"], *VOCABULARY["asks"])
    return frozenset(_WORD.findall(" ".join(texts)))


def fill(rng: random.Random, sentences: str, attribute: str = "") -> str:
    """Return one of the sentences with random words in its gaps.

    Args:
        rng: source of the choices.
        sentences: "features", "stories" or "lines" (of products).
        attribute: for the gap of this name.
    """

    def choose(gap: re.Match[str]) -> str:
        return attribute if gap[1] == "attribute" else str(rng.choice(RANDOM_WORDS[gap[1]]))

    text = _GAP.sub(choose, rng.choice(VOCABULARY[sentences]))
    text = _ARTICLE.sub(r"\1n ", text)
    return text[0].upper() + text[1:]
