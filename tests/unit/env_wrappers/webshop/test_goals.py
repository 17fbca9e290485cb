"""WebShop's goals have the original's texts, order and draws, and are deterministic."""

import itertools
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.webshop import cache, goals
from env_wrappers.webshop.catalogue import Catalogue, open_catalogue
from env_wrappers.webshop.goals import NO_LIMIT, GoalKind, open_goals
from env_wrappers.webshop.records import Goal
from tests.unit.env_wrappers.webshop.webshop_data import (
    ENTRIES,
    ITEMS,
    choices,
    entry,
    human_entry,
    item,
    write_data,
)
from tests.unit.env_wrappers.webshop.webshop_store import recorded

DIGEST = """
import hashlib, sys
from env_wrappers.webshop.catalogue import open_catalogue
from env_wrappers.webshop.goals import open_goals

goals = open_goals(open_catalogue(sys.argv[1]), sys.argv[2], 7)
print(hashlib.sha256(repr(list(goals)).encode()).hexdigest())
"""
KINDS: tuple[GoalKind, GoalKind] = ("synthetic", "human")


@pytest.fixture
def small(tmp_path: Path) -> Catalogue:
    return open_catalogue(write_data(tmp_path / "data"))


@pytest.mark.parametrize("kind", KINDS)
def test_weights(tmp_path: Path, kind: GoalKind) -> None:
    """Weights equal the original's, also if some products have no goals."""
    no_values: dict[str, Any] = {"customization_options": {"Size": []}}
    items = [item("B0", **no_values), *ITEMS, item("B4", **no_values)]
    entries = ENTRIES | {"B3": entry("A soft mop", "soft", "blue"), "B0": entry(), "B4": entry()}
    catalogue = open_catalogue(write_data(tmp_path / "data", items=items, entries=entries))
    found = open_goals(catalogue, kind, price_seed=7)
    counts = Counter(name for goal in found for name in goal.attributes)
    expected = [np.mean([1 / counts[name] for name in goal.attributes]) for goal in found]
    assert sorted(set(expected)) == ([1] if kind == "human" else [1 / 5, (1 / 5 + 1) / 2])
    assert found.weights.tolist() == pytest.approx(expected)


# --- the real store ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "key", "count"), [(KINDS[0], "synth", 6910), (KINDS[1], "human", 13)]
)
def test_goals_are_those_of_the_original(
    real_data: Path, kind: GoalKind, key: str, count: int
) -> None:
    catalogue = open_catalogue(real_data)
    found = open_goals(catalogue, kind, price_seed=7, shuffle_seed=233)
    assert len(found) == count
    episodes = recorded("webshop_traces")[key]
    assert len(episodes) >= 10
    for episode in episodes:
        goal, want = found[episode["idx"]], episode["goal"]
        product = catalogue[goal.product]
        assert goal.index == episode["idx"]
        assert goal.instruction == want["instruction_text"]
        assert list(goal.attributes) == want["attributes"]
        assert goal.price_limit == want["price_upper"]
        assert (product.asin, product.title) == (want["asin"], want["name"])
        assert (product.category, product.query) == (want["category"], want["query"])
        assert product.product_category == want["product_category"]
        if isinstance(goal.options, tuple):
            assert list(goal.options) == want["goal_options"]
        else:
            assert list(goal.options.items()) == list(want["goal_options"].items())


@pytest.mark.parametrize("kind", KINDS)
def test_goals_are_equal_in_two_processes(real_data: Path, kind: GoalKind) -> None:
    def digest(hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", DIGEST, str(real_data), kind],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path.cwd())},
        ).stdout

    first = digest("1")
    assert len(first) == 65
    assert digest("2") == first


# --- the draws, against lists of everything ----------------------------------------------------


def _all_goals(
    catalogue: Catalogue, kind: GoalKind, price_seed: int, shuffle_seed: int
) -> tuple[list[Goal], list[float]]:
    """Return all goals as the original makes them: one random stream, and a shuffled list."""
    rng = random.Random(price_seed)
    prices = [p.prices[0] if len(p.prices) == 1 else rng.uniform(*p.prices) for p in catalogue]
    made: list[dict[str, Any]] = []
    for product in catalogue:
        listing = catalogue.listing(product.index)
        synthetic = [listing.synthetic] if listing.synthetic else []
        for instruction in listing.human if kind == "human" else synthetic:
            above = [10.0 * i for i in range(1, 100) if 10.0 * i > prices[product.index]][:4]
            limit, suffix = NO_LIMIT, ""
            if len(above) >= 2:
                limit = sorted(rng.sample(above, 2))[1]
                suffix = f", and price lower than {limit:.2f} dollars"
            base = {
                "product": product.index,
                "attributes": instruction.attributes,
                "price_limit": limit,
            }
            if kind == "human":
                text = instruction.text.strip(".") + suffix
                made.append(base | {"instruction": text, "options": instruction.options})
                continue
            names = sorted(product.options)
            for values in itertools.product(*(product.options[name] for name in names)):
                options = dict(zip(names, values, strict=True))
                chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
                text = instruction.text + (f" with {chosen}" if chosen else "") + suffix
                made.append(base | {"instruction": text, "options": options})
    random.Random(shuffle_seed).shuffle(made)
    return [Goal(index=place, **goal) for place, goal in enumerate(made)], prices


_GROUPS = st.dictionaries(
    st.sampled_from(["Size", "color", "a b"]),
    st.lists(st.sampled_from(["x", "y", "z", "z"]), max_size=3),
    max_size=3,
)
_PRICES = st.sampled_from(
    ["", "$20", "$19.99", "$3 to $40", "$900 - $1000", "$985", "$960.5", "$0"]
)
_ENTRIES = st.sampled_from([entry("a towel", "soft", "dry"), {"attributes": []}, entry("..x..")])
_HUMAN_ENTRIES = st.lists(
    st.sampled_from([human_entry("..a towel.."), human_entry("b", "x", "y")]),
    max_size=3,
)


@given(
    st.lists(st.tuples(_GROUPS, _PRICES, _ENTRIES, _HUMAN_ENTRIES), min_size=1, max_size=6),
    st.sampled_from(KINDS),
    st.integers(-3, 2**40),
    st.integers(0, 300),
)
def test_goals_are_made_as_with_lists(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[Any, ...]],
    kind: GoalKind,
    price_seed: int,
    shuffle_seed: int,
) -> None:
    asins = [f"B{number}" for number in range(len(records))]
    items = [
        item(asin, pricing=price, customization_options=_choices(groups))
        for asin, (groups, price, _, _) in zip(asins, records, strict=True)
    ]
    entries = {asin: record[2] for asin, record in zip(asins, records, strict=True)}
    human = {asin: record[3] for asin, record in zip(asins, records, strict=True)}
    data = write_data(tmp_path_factory.mktemp("any"), items, entries, human)
    catalogue = open_catalogue(data)
    want, prices = _all_goals(catalogue, kind, price_seed, shuffle_seed)
    if not want:
        with pytest.raises(DataError, match=f"no {kind} goal for any of the"):
            open_goals(catalogue, kind, price_seed, shuffle_seed)
        return
    for _ in range(2):  # drawn, then read back
        found = open_goals(catalogue, kind, price_seed, shuffle_seed)
        assert list(found) == want
        assert found.prices.tolist() == prices


def _choices(groups: dict[str, list[str]]) -> dict[str, Any]:
    """Return options in the format of the data file."""
    return {name: [{"value": value} for value in values] for name, values in groups.items()}


def test_other_seeds_draw_other_prices_or_another_order(small: Catalogue) -> None:
    first = list(open_goals(small, "synthetic", 1))
    other = list(open_goals(small, "synthetic", 2))
    shuffled = list(open_goals(small, "synthetic", 1, shuffle_seed=1))
    assert [goal.price_limit for goal in first] != [goal.price_limit for goal in other]
    assert [goal.options for goal in first] == [goal.options for goal in other]
    assert [goal.options for goal in first] != [goal.options for goal in shuffled]
    assert len({len(first), len(other), len(shuffled), 5}) == 1


# --- as a sequence -----------------------------------------------------------------------------


def test_goals_are_a_sequence(small: Catalogue) -> None:
    found = open_goals(small, "synthetic", 0)
    assert found[-1] == found[4] == found[np.int64(4)]
    assert found[-1].index == 4
    for index in (5, -6):
        with pytest.raises(IndexError):
            found[index]


# --- what cannot be ----------------------------------------------------------------------------


def test_what_gives_no_goals_is_named(tmp_path: Path, small: Catalogue) -> None:
    with pytest.raises(DataError, match="unknown kind of goals 'robot': choose synthetic, human"):
        open_goals(small, "robot", 0)  # type: ignore[arg-type]
    before = sorted(small.folder.rglob("*"))
    for seed in ("../../escaped", "7", 7.0, True, None, 2**63, -(2**63) - 1):
        with pytest.raises(DataError, match="price_seed must be a whole number"):
            open_goals(small, "synthetic", seed)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="shuffle_seed must be a whole number"):
            open_goals(small, "synthetic", 0, seed)  # type: ignore[arg-type]
    assert sorted(small.folder.rglob("*")) == before
    bare = open_catalogue(
        write_data(tmp_path / "bare", entries={asin: {} for asin in ENTRIES}, human=None)
    )
    with pytest.raises(
        DataError, match=r"no synthetic goal for any of the 3 products: items_ins_v2"
    ):
        open_goals(bare, "synthetic", 0)
    with pytest.raises(DataError, match=r"no human goal .* put a items_human_ins.json"):
        open_goals(bare, "human", 0)
    other = open_catalogue(write_data(tmp_path / "other", entries={"B1": entry()}))
    with pytest.raises(DataError, match=r"2 of 3 products in items_shuffle_3.json .*first is B2"):
        open_goals(other, "synthetic", 0)
    assert len(open_goals(other, "human", 0)) == 1


def test_combinations_beyond_count_are_refused_not_made(tmp_path: Path) -> None:
    many = "|".join(map(str, range(100)))
    options = choices(**{f"group {number}": many for number in range(12)})  # 10**24
    items = [item(f"B{number}", customization_options=options) for number in range(3)]
    entries = {f"B{number}": entry() for number in range(3)}
    catalogue = open_catalogue(write_data(tmp_path / "data", items, entries))
    with pytest.raises(DataError, match=r"synthetic goals are too many .*take fewer products"):
        open_goals(catalogue, "synthetic", 0)


# --- the cache on disk -------------------------------------------------------------------------


def _folder(catalogue: Catalogue) -> Path:
    return next(path for path in (catalogue.folder / "goals").iterdir() if path.is_dir())


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), Path.unlink])
@pytest.mark.parametrize("name", ["order.npy", "limits.npy"])
def test_damaged_draws_are_made_again(
    small: Catalogue, name: str, damage: Callable[[Path], object]
) -> None:
    before = list(open_goals(small, "synthetic", 0))
    damage(_folder(small) / name)
    assert list(open_goals(small, "synthetic", 0)) == before


def test_draws_are_made_once(small: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(open_goals(small, "human", 0))
    monkeypatch.setattr(goals, "_draw", None)
    assert list(open_goals(small, "human", 0)) == before


def test_draws_that_cannot_be_kept_are_made_in_memory(
    small: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = list(open_goals(small, "synthetic", 0))

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "new_directory", refuse)
    shutil.rmtree(_folder(small))
    assert list(open_goals(small, "synthetic", 0)) == want
