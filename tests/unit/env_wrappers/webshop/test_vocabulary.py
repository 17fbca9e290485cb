"""The vocabulary of generated stores: only the wanted properties meet a goal."""

import itertools
import re

import pytest

from env_wrappers.webshop.nouns import NounExtractor
from env_wrappers.webshop.records import Goal, Product
from env_wrappers.webshop.reward import ALIKE_ABOVE, score, token_set_ratio
from env_wrappers.webshop.synthetic_products import (
    EDITION,
    EDITIONS,
    KINDS_PER_BRAND,
    MAX_LOOKALIKES,
    MOST_ATTRIBUTES,
    brand_name,
)
from env_wrappers.webshop.vocabulary import RANDOM_WORDS, VOCABULARY, Kind, kinds, request_words

DEPARTMENTS = ("beauty", "electronics", "garden", "fashion", "grocery")
BUTTONS = (
    *("search", "back to search", "next >", "< prev", "description", "features", "reviews"),
    *("attributes", "buy now"),
)
KINDS = [kind for offered in kinds().values() for kind in offered]


def product_of(kind: Kind, options: dict[str, tuple[str, ...]]) -> Product:
    return Product(
        *(0, "B000000000", f"Dafodo {kind.name}", "", (), (10.0,), "$10.0", options),
        *(kind.department, kind.name, kind.path, kind.traits),
    )


def words_of_kinds() -> set[str]:
    """Return the words of names, materials and attributes."""
    return {
        word
        for kind in KINDS
        for text in (kind.name, *kind.materials, *kind.traits, *kind.parts, *kind.purposes)
        for word in text.split()
    }


WORDS = NounExtractor("words", lambda title: title.lower().split())


def test_the_departments() -> None:
    assert tuple(kinds()) == DEPARTMENTS
    assert all(len(offered) >= KINDS_PER_BRAND for offered in kinds().values())
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert all(len(kind.traits) > MAX_LOOKALIKES for kind in KINDS)
    assert len(set(EDITIONS)) >= MAX_LOOKALIKES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_only_the_wanted_value_meets_a_goal(kind: Kind) -> None:
    """Only the wanted value meets an option of a synthetic or human goal."""
    assert len(kind.options) == 2
    groups = {**kind.options, EDITION: EDITIONS}
    product = product_of(kind, groups)
    every = [(group, value) for group, values in groups.items() for value in values]
    for (group, wanted), (other, chosen) in itertools.product(every, every):
        for options in ({group: wanted}, (wanted,)):
            goal = Goal(0, 0, "", (kind.traits[0],), 20.0, options)
            reward, parts = score(product, {other: chosen}, 10.0, goal, product, WORDS)
            met = (group, wanted) == (other, chosen)
            assert parts["r_option"] == met, (wanted, chosen, options)
            assert reward == (1.0 if met else pytest.approx(2 / 3))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_attributes_are_not_mistaken_for_each_other(kind: Kind) -> None:
    every = (*kind.traits, *kind.parts, *kind.purposes)
    assert len(every) > MOST_ATTRIBUTES + MAX_LOOKALIKES
    for one, other in itertools.permutations(every, 2):
        assert token_set_ratio(one, other) <= ALIKE_ABOVE
        assert one not in other
    texts = [kind.name, kind.path.lower(), *kind.materials]
    named = (*kind.traits, *kind.parts)
    assert not any(attribute in text for attribute in named for text in texts)


def test_every_trait_has_a_paraphrase() -> None:
    """Every trait has a unique paraphrase that contains no trait."""
    paraphrases = VOCABULARY["paraphrases"]
    assert set(paraphrases) == {trait for kind in KINDS for trait in kind.traits}
    assert len(set(paraphrases.values())) == len(paraphrases)
    for trait, other in itertools.product(paraphrases, paraphrases.values()):
        assert trait not in other


def test_other_words_tell_nothing() -> None:
    """Neither random words nor words of requests name a property of a product."""
    values = (value for kind in KINDS for shown in kind.options.values() for value in shown)
    groups = (group for kind in KINDS for group in kind.options)
    telling = words_of_kinds().union(EDITIONS, *map(str.split, (*values, *groups)))
    lists = RANDOM_WORDS["noun"], RANDOM_WORDS["adjective"]
    assert [len(set(words)) for words in lists] == list(map(len, lists))
    assert not telling & {word for words in lists for word in words}
    common = {"evening", "morning", "to", "a"}  # of "morning runs", for example
    assert not telling & request_words() - common


def test_values_can_be_clicked() -> None:
    groups = {EDITION, *(group for kind in KINDS for group in kind.options)}
    values = {v for kind in KINDS for values in kind.options.values() for v in values}
    for value in {*EDITIONS, *values}:
        assert value not in BUTTONS
        assert value not in groups
        assert value == value.strip().lower()
        assert re.fullmatch("[a-z0-9 ]+", value)
        assert not re.fullmatch("b0[0-9]{8}", value)


def test_words_are_told_apart_from_brands() -> None:
    """No other word has the form of a brand name."""
    words = words_of_kinds().union(EDITIONS, RANDOM_WORDS["noun"], RANDOM_WORDS["adjective"])
    brand = re.compile("(?:[bdfgklmnprstvz][aeiou]){2}[bdfgklmnprstvz][ao]")
    assert brand.fullmatch(brand_name(3, 14))
    assert not [word for word in words if brand.fullmatch(word)]
