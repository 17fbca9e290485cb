"""The contents and links of the store's pages."""

import re
from dataclasses import replace
from typing import Any

import pytest

from env_wrappers.webshop import pages
from env_wrappers.webshop.pages import Page, PageKind
from env_wrappers.webshop.records import Product
from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop
from tests.unit.env_wrappers.webshop.webshop_store import (
    ODD,
    SHIRT,
    TOWELS,
    available_actions,
    open_product,
    play,
    start,
)


def test_pages_of_results_go_on_beyond_the_last(session: Session) -> None:
    play(session, "search[<c> beauty]", *["click[next >]"] * 3)
    assert session.observation("text").endswith(
        "Back to Search [SEP] Page 4 (Total results: 25) [SEP] < Prev [SEP] Next >"
    )
    assert list(session.clickables) == ["back to search", "< prev", "next >"]
    assert play(session, "click[< prev]").page.results


def test_each_page_leads_back_to_the_one_before(session: Session) -> None:
    play(session, "search[<c> beauty]", "click[next >]")
    results = session.page
    play(session, f"click[{TOWELS[12].lower()}]", "click[features]", "click[< prev]")
    assert session.page.kind is PageKind.ITEM
    play(session, "click[< prev]")
    assert replace(session.page, visited=frozenset()) == results
    assert session.page.visited == {TOWELS[12]}
    play(session, "click[back to search]")
    assert session.observation("url") == "http://127.0.0.1:3000/0"
    assert not session.page.visited


def test_options_last_until_the_product_is_left(session: Session) -> None:
    open_product(session, SHIRT)
    play(session, "click[blue | white]", "click[small]", "click[x-large]", "click[description]")
    chosen = {"color": "blue | white", "size": "x-large"}
    assert session.observation("url").endswith(f"/Description/{chosen}")
    assert play(session, "click[< prev]").page.chosen == chosen
    assert not play(session, "click[< prev]").page.chosen


def test_the_order_of_choices_is_part_of_the_state(shop: Shop) -> None:
    """The order of choices is part of the state and the URL; repeating choices changes nothing."""
    choices = ["click[red]", "click[small]"]
    one, two = (
        play(open_product(start(shop), SHIRT), *order) for order in (choices, choices[::-1])
    )
    assert one.observation("url") != two.observation("url")
    assert one.state_hash != two.state_hash
    assert one.observation("text") == two.observation("text")
    again = play(open_product(start(shop), SHIRT), "click[small]", *choices, "click[red]")
    assert again.observation("url") == two.observation("url")
    assert again.state_hash == two.state_hash


def test_what_was_clicked_is_marked_in_rich_text(session: Session) -> None:
    play(open_product(session, SHIRT), "click[red]", "click[small]")
    lines = session.observation("text_rich").split("\n")
    assert lines[:2] == ["You have clicked small.", "You have clicked red."]
    assert "  [clicked button] red [clicked button_]" in lines
    assert "  [button] x-large [button_]" in lines
    play(session, "click[< prev]")
    assert f"\n\n[clicked button] {SHIRT} [clicked button_]\n" in session.observation("text_rich")
    assert f"\n\n[button] {ODD} [button_]\n" in play(session, "search[odd]").observation(
        "text_rich"
    )


def test_rich_text_goes_by_the_address(session: Session) -> None:
    """Rich text takes quoted words in the URL for clicks and misses non-ASCII values."""
    play(session, 'search[odd "both" thing]', f"click[{ODD.lower()}]")
    clicked = re.compile(r"\[clicked button\] (.*) \[clicked button_\]")
    assert clicked.findall(session.observation("text_rich")) == ["both", "both"]
    play(session, "click[ümlaut ☕]")
    assert clicked.findall(session.observation("text_rich")) == ["both", "both"]
    assert session.page.chosen == {"other": "ümlaut ☕"}
    play(session, "search[odd]", f"click[{ODD.lower()}]", "click[features]", "click[< prev]")
    play(session, 'click[say "hi"]')
    assert clicked.findall(session.observation("text_rich")) == []


def test_sub_pages(shop: Shop) -> None:
    def shown(name: str, asin: str = SHIRT) -> list[str]:
        session = play(open_product(start(shop, show_attributes=True), asin), f"click[{name}]")
        assert list(session.clickables) == ["back to search", "< prev"]
        return session.observation("text").split(pages.SEPARATOR)[4:]

    assert shown("description") == ["All about Slim Cotton Shirt."]
    assert shown("features") == ["first line", "", "third line"]
    assert shown("features", ODD) == ["only one"]
    assert shown("reviews") == []
    category = "Clothing › Tops › Shirts"
    assert shown("attributes") == ["slim fit", "soft", "fashion", "shirts", category]


def test_attributes_are_shown_only_where_asked_for(shop: Shop) -> None:
    plain, full = (open_product(start(shop, show_attributes=show), SHIRT) for show in (False, True))
    assert set(full.clickables) - set(plain.clickables) == {"attributes"}
    plain.step("click[attributes]")
    assert plain.ignored


def test_a_purchase_shows_the_receipt_and_ends_nothing(session: Session) -> None:
    reward, done = play(open_product(session, ODD), "click[kind]").step("click[buy now]")
    assert done
    assert session.score_details
    assert reward == session.page.score
    text = session.observation("text").split(pages.SEPARATOR)
    assert text[5:9] == ["asin", ODD, "options", '{"other": "kind"}']
    assert text[-3:] == [str(reward), "Reward Details", "None"]
    assert available_actions(session) == {"has_search_bar": False, "clickables": []}
    assert session.step("click[buy now]") == (0.0, False)
    assert session.ignored


def test_options_of_the_receipt_are_sorted_and_safe_in_html(shop: Shop) -> None:
    product = shop.catalogue[0]
    chosen = {"b": "<it's> & 'ü'", "a": "x"}
    page = Page("0", "buy", kind=PageKind.DONE, product=product, chosen=chosen, score=0.5)
    options = r'{"a": "x", "b": "\u003cit\u0027s\u003e \u0026 \u0027\u00fc\u0027"}'
    assert pages.text(page).split(pages.SEPARATOR)[8] == options
    assert pages.url(page).endswith("/{'b': \"<it's> & 'ü'\", 'a': 'x'}")


@pytest.mark.parametrize(
    ("words", "shown"),
    [("", []), (" \t", [""]), ("\n ", []), ("\xa0\n", [""]), (" a \n", ["a"]), ("\x0b", [""])],
)
def test_blank_texts_are_what_html_makes_of_them(words: str, shown: list[str]) -> None:
    product = _product(title=words)
    page = Page("0", "buy", kind=PageKind.RESULTS, keywords=("x",), number=1, results=(product,))
    assert pages.text(page).split(pages.SEPARATOR)[6:] == [*shown, "$1.0"]


def _product(**fields: Any) -> Product:
    common: dict[str, Any] = {"index": 0, "asin": "A", "title": "", "description": ""}
    common |= {"bullets": (), "prices": (1.0,), "price_tag": "$1.0", "options": {}}
    common |= {"category": "", "query": "", "product_category": "", "attributes": ()}
    return Product(**common | fields)
