"""The oracle wins every goal of a generated catalogue; the shopper wins most from texts alone."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from env_wrappers.datasets import MANIFEST
from env_wrappers.errors import DataError
from env_wrappers.spaces import ANY_SEARCH
from env_wrappers.webshop.check import check_catalogue, why_missed
from env_wrappers.webshop.generator import ATTRIBUTES, generate
from env_wrappers.webshop.records import Goal, Product
from env_wrappers.webshop.shop import open_shop
from env_wrappers.webshop.shopper import Shopper, oracle_actions, read_wish
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from tests.unit.env_wrappers.webshop.webshop_store import shop_for

SHIRT = Product(
    *(7, "B000000007", "Dafodo Stretchy Linen Polo Shirt", "", ("Stretchy",), (10.0,), "$10.0"),
    {"size": ("small", "navy sea"), "color": ("black", "navy")},
    *("fashion", "polo shirt", "Clothing › Shirts", ("stretchy",)),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalogue of 320 products."""
    out = tmp_path_factory.mktemp("webshop") / "data"
    generate(out, CatalogueSpec(products=320, seed=5))
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a catalogue of 320 products without lookalikes, and with short texts."""
    out = tmp_path_factory.mktemp("plain") / "data"
    generate(out, CatalogueSpec(products=320, seed=5, lookalikes=1, attributes=3))
    return out


class FakeCatalogue:
    """A catalogue whose search returns the given hits of a query, or the default hits."""

    def __init__(self, hits: Sequence[int], **by_query: Sequence[int]):
        self.hits, self.by_query = hits, by_query
        self.queries: list[str] = []

    def search(self, query: str) -> Sequence[int]:
        self.queries.append(query)
        return self.by_query.get(query.replace(" ", "_"), self.hits)


class TestOracle:
    @pytest.mark.parametrize(
        "spec",
        [
            CatalogueSpec(products=320, seed=5),
            CatalogueSpec(products=60, lookalikes=1, seed=2**40, human=1.0, instructed=1.0),
            CatalogueSpec(products=90, lookalikes=6, seed=1),
        ],
        ids=["default", "distinct", "alike"],
    )
    def test_every_goal_is_reached(self, tmp_path: Path, spec: CatalogueSpec) -> None:
        """The oracle wins every synthetic and human goal with a reward of exactly 1.0."""
        generate(tmp_path / "data", spec)
        found = check_catalogue(tmp_path / "data", replay=True)
        assert set(found.goals) == {"synthetic", "human"}
        for check in found.goals.values():
            assert len(check.replayed) == check.count > 0
            assert check.missed == {}
        assert found.broken == {}

    def test_the_actions(self) -> None:
        """The oracle turns pages to the product and clicks all options."""
        wish = "find me a stretchy polo shirt by dafodo"
        options = {"color": "navy", "size": "small"}
        text = f"{wish} with color: navy, and size: small, and price lower than 20.00 dollars"
        goal = Goal(0, 7, text, ("stretchy",), 20.0, options)
        shelf = FakeCatalogue([*range(100, 120), 7])
        clicks = ["click[next >]"] * 2 + ["click[b000000007]", "click[navy]", "click[small]"]
        assert oracle_actions(goal, SHIRT, shelf) == [
            "search[stretchy polo shirt dafodo]",
            *clicks,
            "click[buy now]",
        ]

    def test_it_tries_fewer_words(self) -> None:
        """The oracle uses the first query with the product on page one, else the best query."""
        goal = Goal(0, 7, "i need a nice stretchy shirt", ("stretchy",), 1e6, {})
        shelf = FakeCatalogue(range(8))
        assert oracle_actions(goal, SHIRT, shelf)[0] == "search[nice stretchy shirt]"
        assert shelf.queries == ["nice stretchy shirt"]
        shelf = FakeCatalogue(range(30, 6, -1), stretchy_shirt=[1, 7])
        assert oracle_actions(goal, SHIRT, shelf)[:2] == [
            "search[stretchy shirt]",
            "click[b000000007]",
        ]
        assert shelf.queries == ["nice stretchy shirt", "stretchy shirt"]
        shelf = FakeCatalogue(range(30, 6, -1), stretchy_shirt=[1])
        assert oracle_actions(goal, SHIRT, shelf)[:3] == [
            "search[nice stretchy shirt]",
            *["click[next >]"] * 2,
        ]
        with pytest.raises(DataError, match=r"no search .* finds B000000007"):
            oracle_actions(goal, SHIRT, FakeCatalogue([1, 2]))

    def test_options_of_human_goals(self) -> None:
        """The oracle prefers an equal option value to a fuzzy match and skips unknown values."""
        goal = Goal(0, 7, "shirt", ("stretchy",), 1e6, ("navy", "wool"))
        assert "click[navy]" in oracle_actions(goal, SHIRT, FakeCatalogue([7]))
        assert len(oracle_actions(goal, SHIRT, FakeCatalogue([7]))) == 4
        goal = Goal(0, 7, "shirt", ("stretchy",), 1e6, ("deep navy",))
        assert len(oracle_actions(goal, SHIRT, FakeCatalogue([7]))) == 4


class TestCheck:
    def test_what_is_counted(self, data: Path) -> None:
        """All goals are counted; with replay, an evenly spaced sample of them is played."""
        manifest = json.loads((data / MANIFEST).read_text())
        found = check_catalogue(data)
        assert found.kind == "generated"
        assert found.departments.total() == 320
        assert all(manifest["counts"][name] == n for name, n in found.departments.items())
        splits, count = found.goals["synthetic"].splits, found.goals["synthetic"].count
        assert (splits["test"], splits["dev"]) == (500, 1000)
        assert splits["train"] == count - 1500 == len(open_shop(data).goals) - 1500 > 100
        assert sum(splits[f"{split}_products"] for split in ("test", "dev", "train")) == count
        human = found.goals["human"]
        assert human.count == manifest["counts"]["human instructions"] == human.splits["test"]
        assert human.splits["dev"] == human.splits["train"] == 0
        assert [check.replayed for check in found.goals.values()] == [[], []]
        calls: list[tuple[int, int]] = []
        few = check_catalogue(data, True, 4, lambda *counts: calls.append(counts)).goals
        assert few["synthetic"].replayed == [0, count // 4, count // 2, count * 3 // 4]
        assert calls == [(done, 8) for done in range(1, 9)]

    def test_a_goal_out_of_reach(self, tmp_path: Path) -> None:
        """An unreachable goal is reported with the reason, and the changed file is named."""
        copy = tmp_path / "data"
        generate(copy, CatalogueSpec(products=30))
        records = json.loads((copy / ATTRIBUTES).read_text())
        asin = next(asin for asin, record in records.items() if "instruction" in record)
        records[asin]["instruction_attributes"].append("able to fly")
        (copy / ATTRIBUTES).write_text(json.dumps(records))
        found = check_catalogue(copy, replay=True)
        assert found.changed == {ATTRIBUTES: "is not as it was generated: its sha256 differs"}
        missed = found.goals["synthetic"].missed
        assert missed
        assert all(why.startswith(f"buying {asin} earned 0.") for why in missed.values())
        assert found.broken == found.changed | missed
        (copy / MANIFEST).write_text("{}")
        assert check_catalogue(copy).broken == {MANIFEST: "cannot be read: KeyError('sha256')"}
        (copy / MANIFEST).unlink()
        other = check_catalogue(copy, replay=True)
        assert (other.kind, other.goals["synthetic"].missed) == ("other", missed)
        assert other.broken == {}

    def test_an_action_that_does_nothing(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "env_wrappers.webshop.check.oracle_actions", lambda *_: ["search[x]", "click[moon]"]
        )
        assert why_missed(open_shop(data), 0) == "'click[moon]' did nothing"


class TestWish:
    def test_a_synthetic_instruction(self) -> None:
        wish = read_wish(
            "Find me a linen, machine washable polo shirt by dafodo with color: red | blue, and "
            "size: x-large, and price lower than 40.00 dollars"
        )
        assert wish.words == ("linen", "machine", "washable", "polo", "shirt", "dafodo")
        assert wish.options == {"color": "red | blue", "size": "x-large"}
        assert wish.limit == 40.0

    @pytest.mark.parametrize("text", ["", " with ", "with a: b", "shirt, and price lower than x"])
    def test_anything_can_be_read(self, text: str) -> None:
        assert read_wish(text).limit == math.inf

    @pytest.mark.parametrize("between", [", button closure", ""])
    def test_with_as_part_of_the_wish(self, between: str) -> None:
        wish = read_wish(f"find me tops with short sleeve{between} with color: black")
        assert wish.options == {"color": "black"}
        assert wish.words[:3] == ("tops", "short", "sleeve")


class TestShopper:
    def test_it_shops_well(self, plain: Path) -> None:
        """With short texts, the shopper wins 95 % of the goals, mostly in at most 5 actions."""
        shop = open_shop(plain)
        results = [shop_for(shop, goal, steps=40) for goal in range(300)]
        assert sum(reward == 1.0 for reward, _ in results) > 0.95 * len(results)
        assert sum(len(done) <= 5 for _, done in results) > 0.9 * len(results)

    def test_it_does_not_understand_paraphrases(self, data: Path) -> None:
        """The shopper compares words only, so it fails many human goals."""
        shop = open_shop(data, "human")
        results = [shop_for(shop, goal, steps=40)[0] == 1.0 for goal in range(len(shop.goals))]
        assert 0.2 < sum(results) / len(results) < 0.7

    def test_it_recovers_from_perturbed_actions(self, data: Path) -> None:
        """The shopper wins most goals although a fifth of its actions is replaced at random."""
        shop = open_shop(data)
        results = [shop_for(shop, goal, steps=40, noise=0.2) for goal in range(200)]
        assert sum(reward == 1.0 for reward, _ in results) > 0.75 * len(results)

    def test_equal_seeds_shop_alike(self, data: Path) -> None:
        shop = open_shop(data)
        assert shop_for(shop, 3, noise=0.3) == shop_for(shop, 3, noise=0.3)

    def test_it_puts_back_what_lacks_an_option(self) -> None:
        """The shopper leaves a product that lacks a wanted option and opens the next one."""
        goal = "i need a linen shirt with color: red, and price lower than 40.00 dollars"
        shopper = Shopper(goal, random.Random(0))
        head = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] "
        results = (
            head + "Page 1 (Total results: 3) [SEP] Next > [SEP] B000000001 [SEP] Linen Shirt, "
            "Dear [SEP] $50.0 [SEP] B000000002 [SEP] Linen Shirt [SEP] $5.0 to $9.0 [SEP] "
            "B000000003 [SEP] Wool Shirt [SEP] $9.0"
        )
        listed = ["back to search", "next >", "b000000001", "b000000002", "b000000003"]
        on_results = [f"click[{name}]" for name in listed]
        assert shopper.act(results, on_results)[1] == "click[b000000002]"
        item = head + "< Prev [SEP] color [SEP] blue [SEP] Linen Shirt [SEP] Price: $5.0 to $9.0"
        buttons = ["back to search", "< prev", "description", "buy now"]
        on_item = [f"click[{name}]" for name in (*buttons, "blue")]
        assert shopper.act(item, on_item) == ("not this one", "click[< prev]")
        assert shopper.act(results, on_results)[1] == "click[b000000003]"
        item = item.replace("blue", "red").replace("Linen", "Wool")
        on_item[-1] = "click[red]"
        assert shopper.act(item, on_item) == ("look closer", "click[features]")
        features = f"{head}< Prev [SEP]  With linen"
        back = ("with linen", "click[< prev]")
        assert shopper.act(features, ["click[back to search]", "click[< prev]"]) == back
        assert shopper.act(item, on_item) == ("color red", "click[red]")
        assert shopper.act(item, on_item) == ("buy it", "click[buy now]")

    def test_it_puts_back_what_it_did_not_mean(self) -> None:
        """The shopper leaves a product opened by a perturbed action, despite its options."""
        goal = "i need a linen shirt with color: red"
        shopper = Shopper(goal, random.Random(0))
        head = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] "
        results = (
            head + "Page 1 (Total results: 2) [SEP] Next > [SEP] B000000001 [SEP] Linen Shirt "
            "[SEP] $5.0 [SEP] B000000002 [SEP] Wool Shirt [SEP] $9.0"
        )
        listed = ["back to search", "next >", "b000000001", "b000000002"]
        assert shopper.act(results, [f"click[{name}]" for name in listed])[1] == (
            "click[b000000001]"
        )
        item = head + "< Prev [SEP] color [SEP] red [SEP] Wool Shirt [SEP] Price: $9.0"
        on_item = [f"click[{name}]" for name in ("back to search", "< prev", "buy now", "red")]
        slip = "click[b000000002]"
        assert shopper.act(item, on_item, slip) == ("not this one", "click[< prev]")

    def test_it_settles_in_the_end(self) -> None:
        """If nothing matches, the shopper turns pages, goes back and opens the best product."""
        goal = "find me linen shirt dafodo stretchy"
        shopper = Shopper(goal, random.Random(0))
        page = (
            f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] Page %d (Total results: 50) "
            "[SEP] Next > [SEP] B000000001 [SEP] Socks [SEP] $1.0 [SEP] B000000002 [SEP] "
            "Shirt [SEP] $1.0"
        )
        clicks = [f"click[{n}]" for n in ("back to search", "next >", "b000000001", "b000000002")]
        for number in (1, 2):
            assert shopper.act(page % number, clicks)[1] == "click[next >]"
        assert shopper.act(page % 3, clicks)[1] == "click[back to search]"
        index = f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
        assert shopper.act(index, [ANY_SEARCH, "click[search]"]) == (
            "search",
            "search[linen shirt dafodo stretchy]",
        )
        assert shopper.act(page % 1, clicks)[1] == "click[b000000002]"

    def test_it_always_searches_for_something(self) -> None:
        """The shopper's query is not empty if the product's pages share no word with the goal."""
        goal = "find me linen shirt"
        shopper = Shopper(goal, random.Random(0))
        head = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] < Prev [SEP] "
        clicks = [f"click[{n}]" for n in ("back to search", "< prev", "features", "buy now")]
        assert shopper.act(f"{head}Socks [SEP] Price: $1.0", clicks)[1] == "click[features]"
        assert shopper.act(f"{head}Warm", clicks[:2])[1] == "click[back to search]"
        index = f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
        assert shopper.act(index, [ANY_SEARCH, "click[search]"])[1] == "search[linen shirt]"

    def test_nothing_found(self) -> None:
        """After a search without results, the shopper searches with fewer words."""
        goal = "find me linen shirt"
        shopper = Shopper(goal, random.Random(0))
        empty = f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] Page 1 (Total results: 0)"
        clicks = ["click[back to search]", "click[next >]"]
        assert shopper.act(f"{empty} [SEP] Next >", clicks)[1] == "click[back to search]"
        index = f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search"
        action = shopper.act(index, [ANY_SEARCH, "click[search]"])[1]
        assert action in ("search[linen]", "search[shirt]")
