"""Each decision in the store matters: scripted players that lack one lose many goals."""

import functools
import re
from dataclasses import fields

import pytest

from env_wrappers.webshop.generator import generate
from env_wrappers.webshop.pages import BUY_NOW
from env_wrappers.webshop.players import PLAYERS, NoisyShopper
from env_wrappers.webshop.shop import Shop, open_shop
from env_wrappers.webshop.shopper import Mistakes, Shopper
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from tests.unit.env_wrappers.webshop.webshop_store import Make, shop_for

GOALS = 200
WORD = re.compile(r"\w+")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Shop]:
    """Return stores by number of lookalikes."""
    root = tmp_path_factory.mktemp("stores")
    shops = {}
    for lookalikes in (1, 3, 6):
        generate(root / str(lookalikes), CatalogueSpec(products=300, lookalikes=lookalikes))
        shops[lookalikes] = open_shop(root / str(lookalikes), nouns="words")
    return shops


def won(shop: Shop, make: Make, steps: int = 15) -> float:
    """Return the share of goals with reward 1."""
    return sum(shop_for(shop, goal, make, steps)[0] == 1.0 for goal in range(GOALS)) / GOALS


def test_lookalikes_make_goals_harder(stores: dict[int, Shop]) -> None:
    """More lookalikes lower the success rate of every player that wins at all."""
    rates = {name: [won(shop, make) for shop in stores.values()] for name, make in PLAYERS.items()}
    assert max(rates["first-hit"]) < 0.1
    one, three, six = rates["first-hit-options"]
    assert one > 0.97
    assert three < 0.4
    assert six < 0.25
    one, three, six = rates["careful"]
    assert one > 0.97 > three > 0.85 > six > 0.55
    assert won(stores[6], PLAYERS["exhaustive"], steps=60) > 0.9
    for name in ("first-hit-options", "careful", "exhaustive"):
        assert sorted(rates[name], reverse=True) == rates[name]


@pytest.mark.parametrize("mistake", [field.name for field in fields(Mistakes)])
def test_every_mistake_loses_goals(stores: dict[int, Shop], mistake: str) -> None:
    """Each kind of mistake alone lowers the success rate by more than 0.1."""
    only = Mistakes(**{mistake: 1.0})
    careful = won(stores[3], Shopper)
    assert won(stores[3], lambda goal, rng: Shopper(goal, rng, only)) < careful - 0.1


@pytest.mark.parametrize("steps", [10, 15])
def test_imitation_leaves_much_to_learn(stores: dict[int, Shop], steps: int) -> None:
    noisy = functools.partial(NoisyShopper, mistake_rate=0.25)
    assert 0.25 <= won(stores[3], noisy, steps) <= 0.4


def test_it_repeats_the_search_after_reading(stores: dict[int, Shop]) -> None:
    """After reading features, the shopper searches again without the words that titles lack."""
    shop, seen = stores[3], 0
    for goal in range(GOALS):
        _, done = shop_for(shop, goal)
        if ["click[features]", "click[back to search]"] in [done[2:4], done[4:6]]:
            again = done[done.index("click[back to search]") + 1]
            assert set(WORD.findall(again)) < set(WORD.findall(done[0]))
            seen += 1
        assert f"click[{BUY_NOW.lower()}]" not in done[:-1]
    assert seen > 0.1 * GOALS
