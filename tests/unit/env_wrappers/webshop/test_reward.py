"""The reward of WebShop: its quirks, and equality with the recorded rewards of the original."""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.webshop.catalogue import Catalogue, open_catalogue
from env_wrappers.webshop.goals import GoalList, open_goals
from env_wrappers.webshop.nouns import SPACY_MODEL, NounExtractor, make_noun_extractor
from env_wrappers.webshop.records import Goal, Product
from env_wrappers.webshop.reward import COLORS, score, token_set_ratio
from tests.unit.env_wrappers.webshop.webshop_store import recorded

HAS_SPACY_MODEL = importlib.util.find_spec(SPACY_MODEL) is not None


def given(nouns: Mapping[str, list[str]] | None = None) -> NounExtractor:
    """Return an extractor of the given nouns of titles, or of all words of other titles."""
    return NounExtractor("given", lambda title: (nouns or {}).get(title, title.lower().split()))


def product(**changes: Any) -> Product:
    """Return a towel with changes."""
    towel = Product(
        index=0,
        asin="B000000001",
        title="Soft Hair Towel",
        description="It dries in a minute.",
        bullets=("Machine wash", "Two pack"),
        prices=(4.99,),
        price_tag="$4.99",
        options={"color": ("pink", "pink rose"), "size": ("large", "x-large")},
        category="beauty",
        query="hair towels",
        product_category="Beauty › Hair Care › Towels",
        attributes=("dry hair", "easy use"),
    )
    return dataclasses.replace(towel, **changes)


def goal(**changes: Any) -> Goal:
    """Return a goal of a towel without attributes and options, with changes."""
    return dataclasses.replace(Goal(0, 0, "i want a towel", (), 10.0, {}), **changes)


def scored(*arguments: Any) -> dict[str, Any]:
    """Return the parts of a score, and the score itself as "reward"."""
    reward, parts = score(*arguments)
    return {"reward": reward, **parts}


def bought(
    wish: Goal, chosen: Mapping[str, str] | None = None, price: float = 5.0, **changes: Any
) -> dict[str, Any]:
    """Return the score of buying the towel, with changes."""
    return scored(product(**changes), chosen or {}, price, wish, product(), given())


class TestType:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, 1.0),
            ({"title": "Comb", "query": "combs", "product_category": "x"}, 0.0),
            ({"title": "Comb"}, 0.0),  # an equal query does not help without any common noun
            ({"title": "Soft Comb", "query": "combs", "product_category": "x"}, 1.0),
        ],
    )
    def test_of_a_short_title(self, changes: dict[str, Any], expected: float) -> None:
        assert bought(goal(), **changes)["r_type"] == expected

    @pytest.mark.parametrize(
        ("common", "of", "related", "expected"),
        [
            (1, 5, False, 0.5),  # 0.2 is not above 0.2
            (1, 5, True, 1.0),
            (2, 9, False, 1.0),
            (1, 10, False, 0.5),
            (1, 10, True, 1.0),
            (1, 11, False, 0.1),
            (1, 11, True, 0.1),  # a low share counts more than the same query
            (0, 11, True, 0.0),
        ],
    )
    def test_thresholds(self, common: int, of: int, related: bool, expected: float) -> None:
        wanted = [f"word{n}" for n in range(of)]
        nouns = given({"wanted": wanted, "own": [*wanted[:common], "other"]})
        unrelated = {} if related else {"query": "?", "product_category": ""}
        result = scored(
            product(title="own", **unrelated), {}, 5.0, goal(), product(title="wanted"), nouns
        )
        assert (result["r_type"], result["title_score"]) == (expected, common / of)
        assert result["query_match"] is result["category_match"] is related

    def test_repeated_nouns_make_even_the_same_product_less(self) -> None:
        result = bought(goal(), title="Towel towel TOWEL")
        twice = scored(
            product(title="Towel towel"), {}, 5.0, goal(), product(title="Towel towel"), given()
        )
        assert twice["title_score"] == 0.5
        assert result["title_score"] == 1 / 3

    def test_a_wanted_title_without_nouns(self) -> None:
        wanted = product(title="", query="?", product_category="")
        result = scored(product(), {}, 5.0, goal(), wanted, given())
        assert (result["title_score"], result["r_type"]) == (0.2, 0.5)

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("Beauty › Towels", True),
            ("Towels›Beauty", True),
            ("Beauty › Beauty › Combs", False),
            ("Beauty", False),
            ("", False),
        ],
    )
    def test_two_parts_of_the_path_make_a_category(self, path: str, expected: bool) -> None:
        assert bought(goal(), product_category=path)["category_match"] is expected


class TestAttributes:
    @pytest.mark.parametrize(
        ("attribute", "met"),
        [
            ("dry hair", True),
            ("hair that is dry", True),  # all words of one of the product's attributes
            ("dryhair", True),  # 93 of 100
            ("wash two pa", True),  # across bullets
            ("in a minute", True),
            ("Machine wash", False),  # the texts are lowercased, the attribute is not
            ("cordless", False),
        ],
    )
    def test_where_an_attribute_is_found(self, attribute: str, met: bool) -> None:
        result = bought(goal(attributes=(attribute,)))
        assert (result["r_att"], result["w_att"]) == (float(met), 0.5)
        assert result["reward"] == (1.0 if met else 0.5)

    @pytest.mark.parametrize(
        ("own", "wanted", "met"),
        [("abcdefg", "abcdefx", True), ("abcdefghijklmnopqrst", "abcdefghijklmnopq123", False)],
    )
    def test_86_is_alike_and_85_is_not(self, own: str, wanted: str, met: bool) -> None:
        assert token_set_ratio(own, wanted) == (86 if met else 85)
        assert bought(goal(attributes=(wanted,)), attributes=(own,))["r_att"] == float(met)

    def test_none_asked_for(self) -> None:
        result = bought(goal())
        assert (result["reward"], result["w_price"]) == (1.0, 1.0)
        assert (result["r_att"], result["w_att"]) == (0.0, 0.0)


class TestOptions:
    @pytest.mark.parametrize(
        ("wanted", "chosen", "met"),
        [
            ({"color": "pink"}, {"color": "pink"}, 1),
            ({"color": "pink"}, {"color": "dark pink"}, 0),  # "dark" of the chosen value remains
            ({"color": "pink"}, {"color": "pink rose"}, 1),
            ({"color": "pink rose"}, {"color": "pink rose"}, 1),  # "pink" is a subset
            ({"color": "pink rose"}, {"color": "rose gold"}, 0),  # "gold" remains
            ({"size": "large"}, {"size": "large"}, 1),
            ({"size": "large"}, {"size": "x-large"}, 0),  # against "size large" it is 75
            ({"size": "x-large"}, {"size": "large"}, 1),
            ({"size": "large"}, {"size": "large size"}, 1),  # the group is one of the words
            ({"size": "large"}, {"other": "size"}, 1),
            ({"size": "large"}, {}, 0),
            ({"color": "pink", "size": "large"}, {"size": "large", "fit": "wide"}, 1),
        ],
    )
    def test_of_synthetic_goals(
        self, wanted: dict[str, str], chosen: dict[str, str], met: int
    ) -> None:
        result = bought(goal(options=wanted), chosen)
        assert result["r_option"] == met / len(wanted)
        assert result["w_option"] == len(wanted) / (len(wanted) + 1)
        assert result["reward"] == (met + 1) / (len(wanted) + 1)

    @pytest.mark.parametrize(
        ("wanted", "chosen", "met"),
        [
            (("large",), {"size": "x-large"}, 1),
            (("pink rose",), {"color": "a-pink"}, 1),
            (("powdered",), {"color": "red"}, 1),
            (("xl",), {"size": "xxl"}, 0),
            (("pink", "pink"), {"color": "pink"}, 2),
        ],
    )
    def test_of_human_goals(
        self, wanted: tuple[str, ...], chosen: dict[str, str], met: int
    ) -> None:
        assert bought(goal(options=wanted), chosen)["r_option"] == met / len(wanted)

    @pytest.mark.parametrize("nothing", [{}, ()])
    def test_none_asked_for(self, nothing: Any) -> None:
        result = bought(goal(options=nothing), {"color": "pink"})
        assert result["reward"] == 1.0
        assert not {"r_option", "w_option"} & result.keys()


@pytest.mark.parametrize(("price", "met"), [(9.99, True), (10.0, True), (10.01, False)])
def test_the_price_may_reach_the_limit(price: float, met: bool) -> None:
    result = bought(goal(attributes=("dry hair",)), price=price)
    assert result["r_price"] is met
    assert result["reward"] == (1.0 if met else 0.5)


@hypothesis.given(
    st.lists(st.sampled_from(["dry hair", "cordless", "machine wash", "xyz"]), max_size=4),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(COLORS[:3]), max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(COLORS[:3]), max_size=3),
    st.floats(0, 20),
)
def test_the_reward_is_the_weighted_sum_of_the_breakdown(
    attributes: list[str], wanted: dict[str, str], chosen: dict[str, str], price: float
) -> None:
    result = bought(goal(attributes=tuple(attributes), options=wanted), chosen, price)
    total = result["r_att"] * result["w_att"] + result["r_price"] * result["w_price"]
    total += result.get("r_option", 0) * result.get("w_option", 0)
    assert result["reward"] == pytest.approx(result["r_type"] * total)
    assert 0 <= result["reward"] <= 1
    assert result["w_att"] + result.get("w_option", 0) + result["w_price"] == pytest.approx(1)
    assert result["noun_extractor"] == "given"


@pytest.fixture
def fresh_extractors() -> Iterator[None]:
    """Clear the process's cache of extractors before and after a test."""
    make_noun_extractor.cache_clear()
    yield
    make_noun_extractor.cache_clear()


MODEL = """
class Token:
    def __init__(self, word):
        self.text, _, self.pos_ = word.partition("/")

class Model:
    meta = {"version": "9.8.7"}
    def __call__(self, title):
        return map(Token, title.split())

def load(exclude):
    assert set(exclude) <= {"ner", "lemmatizer"}
    return Model()
"""


class TestNouns:
    @pytest.mark.parametrize(
        ("title", "expected"),
        [
            ("", []),
            ("Towel, 2 Pack of the Towel", ["towel", "pack", "towel"]),
            ("Soft Towel", ["soft", "towel"]),  # capitalized, it could be a name
            ("a soft washable towel", ["towel"]),
            ("made with Washable cotton", ["washable", "cotton"]),
            ("T-Shirt size M", ["t", "shirt", "size"]),
            ("28g 10pcs 500 IPX7", ["g", "10pcs", "ipx7"]),
            ("★ _ 5 ½", []),
            ("Café ÉLAN", ["café", "élan"]),
        ],
    )
    def test_words(self, title: str, expected: list[str]) -> None:
        nouns = make_noun_extractor("words")
        assert nouns.name == "words"
        assert list(nouns.find(title)) == expected

    @hypothesis.given(st.text())
    def test_words_of_anything(self, title: str) -> None:
        for noun in make_noun_extractor("words").find(title):
            assert noun
            assert not set(noun) & set(" _\n")

    def test_one_extractor_for_the_process(self) -> None:
        assert make_noun_extractor("words") is make_noun_extractor("words")

    def test_an_unknown_name(self) -> None:
        with pytest.raises(DataError, match="extractor 'wordnet': choose auto, spacy, words"):
            make_noun_extractor("wordnet")

    @pytest.mark.skipif(HAS_SPACY_MODEL, reason=f"{SPACY_MODEL} is installed")
    def test_without_the_model(self) -> None:
        assert make_noun_extractor("auto").name == "words"
        with pytest.raises(DataError, match=f"install it with .*download {SPACY_MODEL}") as caught:
            make_noun_extractor("spacy")
        assert "\n" not in str(caught.value)

    @pytest.mark.usefixtures("fresh_extractors")
    @pytest.mark.parametrize("name", ["auto", "spacy"])
    def test_with_a_model(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / f"{SPACY_MODEL}.py").write_text(MODEL, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, SPACY_MODEL, raising=False)
        nouns = make_noun_extractor(name)
        assert nouns.name == f"spacy {SPACY_MODEL} 9.8.7"
        assert list(nouns.find("A/DET Soft/ADJ Towel/NOUN ACME/PROPN ,/PUNCT")) == ["towel", "acme"]
        monkeypatch.delitem(sys.modules, SPACY_MODEL)

    @pytest.mark.skipif(not HAS_SPACY_MODEL, reason=f"{SPACY_MODEL} is not installed")
    def test_with_the_model(self) -> None:
        nouns = make_noun_extractor("auto")
        assert nouns.name.startswith(f"spacy {SPACY_MODEL} ")
        assert {"towel", "hair"} <= set(nouns.find("A soft towel for dry hair"))


# Rewards of the original engine, on products that the repository does not contain.


@pytest.fixture(scope="module")
def recorded_nouns() -> NounExtractor:
    """Return the nouns that the original's model saw."""
    return given(recorded("webshop_title_nouns")["nouns"])


@pytest.fixture(scope="module")
def store(real_data: Path) -> tuple[Catalogue, GoalList]:
    """Return the catalogue of the 1,000 products and its synthetic goals, price seed 7."""
    catalogue = open_catalogue(real_data)
    return catalogue, open_goals(catalogue, "synthetic", price_seed=7)


def test_all_recorded_rewards(
    store: tuple[Catalogue, GoalList], recorded_nouns: NounExtractor
) -> None:
    catalogue, goals = store
    purchases = recorded("webshop_rewards")
    assert len(purchases) == 2000
    for goal_index, asin, chosen, reward, breakdown in purchases:
        wish, (index,) = goals[goal_index], catalogue.find("asin", asin)
        given_score, shown = score(
            catalogue[index],
            chosen,
            goals.prices[index],
            wish,
            catalogue[wish.product],
            recorded_nouns,
        )
        assert shown.pop("noun_extractor") == "given"
        assert given_score == pytest.approx(reward, abs=1e-9)
        assert shown == pytest.approx(breakdown, abs=1e-9)
        assert list(shown) == list(breakdown)


def test_words_agree_with_the_recorded_nouns(
    store: tuple[Catalogue, GoalList], recorded_nouns: NounExtractor
) -> None:
    """Words and recorded nouns rarely differ in `r_type` (5.4% and 2.2% of 6,150 purchases)."""
    catalogue, goals = store
    words = make_noun_extractor("words")

    def types(wish: Goal, index: int) -> list[float]:
        bought, wanted = catalogue[index], catalogue[wish.product]
        extractors = (words, recorded_nouns)
        return [scored(bought, {}, 1.0, wish, wanted, nouns)["r_type"] for nouns in extractors]

    near, far = [], []
    for wish in (goals[number] for number in range(0, len(goals), 40)):
        near += [types(wish, int(hit)) for hit in catalogue.search(wish.instruction)[:10]]
        far += [types(wish, index) for index in range(wish.index % 97, len(catalogue), 97)]
    assert sum(first != second for first, second in near) / len(near) < 0.08
    assert sum(first != second for first, second in far) / len(far) < 0.04
