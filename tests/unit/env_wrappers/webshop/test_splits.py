"""WebShop's canonical splits of goals and its splits by product."""

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.webshop.catalogue import open_catalogue
from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.goals import PRODUCT_SPLITS, SPLITS, GoalList, open_goals, split_goals
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from tests.unit.env_wrappers.webshop.webshop_data import (
    choices,
    entry,
    human_entry,
    item,
    write_data,
)

SPLIT_OF = {
    "B000000007": "test_products",
    "B000000011": "test_products",
    "B000000018": "dev_products",
    "B000000013": "train_products",
    "B000000009": "train_products",
}
"""The splits of some products, which must never change."""


def _asins(path: Path, goals: GoalList, split: str) -> list[str]:
    """Return the asin of each goal of a split."""
    catalogue = open_catalogue(path)
    return [catalogue[goals[place].product].asin for place in split_goals(goals, split)]


# --- the canonical splits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "count", "places"),
    [
        ("test", 6910, range(500)),
        ("dev", 6910, range(500, 1500)),
        ("train", 6910, range(1500, 6910)),
        ("released_train", 6910, range(500, 6910)),
        ("released_eval", 6910, range(500)),
        ("test", 13, range(13)),
        ("dev", 501, range(500, 501)),
    ],
)
def test_canonical_splits(split: str, count: int, places: range) -> None:
    assert split_goals(range(count), split) == places  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 500, 501, 1500, 1501, 12_087])
def test_canonical_splits_share_no_goal_and_leave_none_out(count: int) -> None:
    def places(*splits: str) -> list[int]:
        goals, there = range(count), [split for split in splits if SPLITS[split][0] < count]
        return [place for split in there for place in split_goals(goals, split)]  # type: ignore[arg-type]

    assert places("test", "dev", "train") == list(range(count))
    assert places("released_eval", "released_train") == list(range(count))


def test_splits_without_goals_are_refused() -> None:
    for split, count, problem in (
        ("train", 13, "'train' is empty: it starts at goal 1500, and there are 13"),
        ("released_train", 500, "'released_train' is empty"),
        ("valid", 6910, "unknown split 'valid': choose test, dev, train, .*train_products"),
    ):
        with pytest.raises(DataError, match=problem):
            split_goals(range(count), split)  # type: ignore[arg-type]


# --- splits by product ---------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text("0123456789", min_size=1, max_size=9),
        st.tuples(st.booleans(), st.integers(1, 4)),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 3),
)
def test_splits_by_product_share_no_product_and_leave_no_goal_out(
    tmp_path_factory: pytest.TempPathFactory,
    products: dict[str, tuple[bool, int]],
    shuffle_seed: int,
) -> None:
    """Splits by product partition the goals and share no product."""
    items = [
        item(asin, customization_options=choices(size="|".join("abcd"[:count])))
        for asin, (_, count) in products.items()
    ]
    entries = {
        asin: entry() if wish else {"attributes": []} for asin, (wish, _) in products.items()
    }
    path = write_data(
        tmp_path_factory.mktemp("any"), [*items, item("B")], entries | {"B": entry()}, {}
    )
    goals = open_goals(open_catalogue(path), "synthetic", 0, shuffle_seed)
    found = {}
    for split in PRODUCT_SPLITS:
        with contextlib.suppress(DataError):  # no product of this split has goals
            found[split] = list(split_goals(goals, split))
    assert sorted(itertools.chain(*found.values())) == list(range(len(goals)))
    split_of = {}
    for split, places in found.items():
        assert places == sorted(places)
        for place in places:
            assert split_of.setdefault(goals[place].product, split) == split


def test_a_product_stays_in_its_split(tmp_path: Path) -> None:
    """A product's split does not depend on other products, options or the kind of goals."""
    items = [item(asin, customization_options=choices(size="s|l")) for asin in SPLIT_OF]
    entries = {asin: entry() for asin in SPLIT_OF}
    human = {asin: [human_entry("a towel")] for asin in SPLIT_OF}
    both = write_data(tmp_path / "both", items, entries, human)
    few = write_data(tmp_path / "few", [item(asin) for asin in [*SPLIT_OF][:0:-1]], entries)
    for path, kind, asins, each in (
        (both, "synthetic", [*SPLIT_OF], 2),
        (both, "human", [*SPLIT_OF], 1),
        (few, "synthetic", [*SPLIT_OF][1:], 1),
    ):
        goals = open_goals(open_catalogue(path), kind, price_seed=3)  # type: ignore[arg-type]
        for split in PRODUCT_SPLITS:
            wanted = sorted(each * [asin for asin in asins if SPLIT_OF[asin] == split])
            assert sorted(_asins(path, goals, split)) == wanted


def test_splits_by_product_without_goals_are_refused(tmp_path: Path) -> None:
    path = write_data(tmp_path / "one", [item("B000000007")], {"B000000007": entry()}, {})
    goals = open_goals(open_catalogue(path), "synthetic", 0)
    assert list(split_goals(goals, "test_products")) == [0]
    reason = "'train_products' is empty: none of the 1 goals is of its products; take another split"
    with pytest.raises(DataError, match=reason):
        split_goals(goals, "train_products")


def test_splits_of_a_generated_store(tmp_path: Path) -> None:
    """All splits have synthetic and human goals; about a tenth of the products are for test."""
    path = tmp_path / "store"
    generate(path, CatalogueSpec(products=400))
    for kind in ("synthetic", "human"):
        goals = open_goals(open_catalogue(path), kind, 0)  # type: ignore[arg-type]
        asins = {split: set(_asins(path, goals, split)) for split in PRODUCT_SPLITS}
        total = len(set().union(*asins.values()))
        assert sum(map(len, asins.values())) == total
        assert 0.05 < len(asins["test_products"]) / total < 0.2
        assert len(asins["train_products"]) / total > 0.7


def test_splits_of_the_official_store(real_data: Path) -> None:
    """Splits by product share no product, unlike 479 of the 500 canonical test goals."""
    goals = open_goals(open_catalogue(real_data), "synthetic", 0)
    asins = {split: _asins(real_data, goals, split) for split in (*SPLITS, *PRODUCT_SPLITS)}

    def shared(split: str, train: str) -> int:
        return sum(asin in set(asins[train]) for asin in asins[split])

    assert (shared("test", "train"), shared("dev", "train")) == (479, 972)
    counts = {split: (len(asins[split]), len(set(asins[split]))) for split in PRODUCT_SPLITS}
    assert counts == {
        "test_products": (707, 44),
        "dev_products": (1311, 42),
        "train_products": (4892, 329),
    }
    assert shared("test_products", "train_products") == 0
    assert shared("dev_products", "train_products") == shared("test_products", "dev_products") == 0
