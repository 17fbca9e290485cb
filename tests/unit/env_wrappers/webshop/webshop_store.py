"""A small store with names that are hard to click, players, and recordings of the original."""

import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.spaces import ANY_SEARCH
from env_wrappers.webshop.records import Product
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop
from env_wrappers.webshop.shopper import Shopper
from tests.paths import SHARED

Make = Callable[[str, random.Random], Shopper]

SHIRT = "B0SHIRT001"
ODD = "B0ODD00001"
TOWELS = [f"B0TOWEL{number:03}" for number in range(25)]
SMALL_LETTERS = "b0small001"


def write_store(folder: Path) -> Path:
    """Write the three files of a store of 29 products into a new folder and return it."""
    folder.mkdir(parents=True)
    items = [*_shirts(), *_towels(), _odd(), _small_letters(), _named_like_a_button()]
    instructions = {item["asin"]: _instruction(item) for item in items}
    files = {
        "items_shuffle.json": items,
        "items_ins_v2.json": instructions,
        "items_human_ins.json": {SHIRT: [_HUMAN, {**_HUMAN, "instruction_attributes": []}]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def recorded(name: str) -> Any:
    """Return a recording of the original; the repository does not contain them."""
    path = SHARED / "parity" / f"{name}.json.xz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return json.loads(lzma.decompress(path.read_bytes()))


def start(shop: Shop, goal: int = 0, show_attributes: bool = False) -> Session:
    """Return a new session of a shop with a goal."""
    session = Session(shop, show_attributes)
    session.start(goal)
    return session


def play(session: Session, *actions: str) -> Session:
    """Take actions and assert that none is ignored."""
    for action in actions:
        session.step(action)
        assert not session.ignored, action
    return session


def shop_for(
    shop: Shop, goal: int, make: Make = Shopper, steps: int = 15, noise: float = 0.0
) -> tuple[float, list[str]]:
    """Play with a shopper; with probability `noise` a random click replaces its action.

    Returns:
        The reward of the episode, and its actions.
    """
    session, slips = start(shop, goal), random.Random(f"slips {goal}")
    shopper = make(session.goal.instruction, random.Random(goal))
    done: list[str] = []
    while len(done) < steps:
        admissible = session.actions
        last = done[-1] if done else None
        thought, action = shopper.act(session.observation("text"), admissible, last)
        assert 0 < len(thought) < 60
        searches = ANY_SEARCH in admissible and action.startswith("search[") and len(action) > 9
        assert action in admissible or searches
        if slips.random() < noise:
            action = slips.choice([a for a in admissible if a != "click[buy now]"])
        done.append(action)
        reward, bought = session.step(action)
        assert noise or not session.ignored
        if bought:
            return reward, done
    return 0.0, done


def available_actions(session: Session) -> dict[str, Any]:
    """Return the original's dict of the actions that a page offers."""
    has_search_bar = ANY_SEARCH in session.actions
    return {"has_search_bar": has_search_bar, "clickables": session.clickables}


def product_of(shop: Shop, asin: str) -> Product:
    """Return the product with this asin."""
    return shop.catalogue[shop.catalogue.find("asin", asin)[0]]


def open_product(session: Session, asin: str) -> Session:
    """Go to a product's page."""
    play(session, f"search[{product_of(session._shop, asin).title}]")
    for _ in range(5):  # after the last page, further pages have no products
        if asin.lower() not in session.clickables:
            play(session, "click[next >]")
    return play(session, f"click[{asin.lower()}]")


_HUMAN = {
    "instruction": "i need a slim fit shirt in red.",
    "instruction_attributes": ["slim fit"],
    "instruction_options": ["red"],
}


def _item(asin: str, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": name,
        "full_description": f"All about {name}.",
        "small_description": ["first line", "", "third line"],
        "pricing": "$12.50",
        "customization_options": "",
        "images": ["https://example.org/picture.jpg"],
        "category": "fashion",
        "query": "Shirts ",
        "product_category": "Clothing › Tops › Shirts",
        **fields,
    }


def _values(*values: str) -> list[dict[str, str]]:
    return [{"value": value} for value in values]


def _shirts() -> list[dict[str, Any]]:
    options = {"Color": _values("Red", "Blue/White"), "Size": _values("small", "X-Large")}
    return [_item(SHIRT, "Slim Cotton Shirt", customization_options=options)]


def _towels() -> list[dict[str, Any]]:
    common = {"category": "beauty", "query": "towels", "product_category": "Bath › Linen › Towels"}
    return [_item(asin, f"Towel number {n}", **common) for n, asin in enumerate(TOWELS)]


def _odd() -> dict[str, Any]:
    """Return a product whose options are named like buttons or cannot be clicked."""
    options = {
        "Kind": _values("Buy Now", "features", "both", "", "search", "< Prev", "Next >"),
        "Other": _values("both", "a [b]", 'say "hi"', "ümlaut ☕", "kind"),
        "Gone": None,
    }
    return _item(
        ODD, "Odd thing", customization_options=options, pricing="", small_description="only one"
    )


def _small_letters() -> dict[str, Any]:
    return _item(SMALL_LETTERS, "Thing in small letters", pricing="$5 to $9.5")


def _named_like_a_button() -> dict[str, Any]:
    return _item("REVIEWS", "Thing named like a button")


def _instruction(item: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"attributes": ["slim fit", "soft"]}
    if item["asin"] != ODD:
        known |= {"instruction": f"Find me {item['name']}", "instruction_attributes": ["slim fit"]}
    return known
