"""A session behaves like the original store: recorded episodes and quirks."""

import ast
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from env_wrappers.webshop.nouns import NounExtractor
from env_wrappers.webshop.pages import PageKind
from env_wrappers.webshop.records import Product
from env_wrappers.webshop.session import Session, parse_action
from env_wrappers.webshop.shop import Shop, open_shop
from tests.paths import SHARED
from tests.unit.env_wrappers.webshop.webshop_store import (
    ODD,
    SHIRT,
    SMALL_LETTERS,
    TOWELS,
    available_actions,
    open_product,
    play,
    recorded,
    start,
)

PAGES = SHARED / "parity/webshop_pages.txt"
ORIGINAL_FORM = re.compile(r"(.+)\[(.+)\]")


def _real_shop(data: Path, goals: Literal["synthetic", "human"]) -> Shop:
    shop = open_shop(data, goals, price_seed=7, shuffle_seed=233, nouns="words")
    nouns = recorded("webshop_title_nouns")["nouns"]
    return replace(shop, nouns=NounExtractor("recorded", nouns.__getitem__))


# Recorded episodes of the original


@pytest.mark.parametrize(
    ("kind", "name", "count"), [("synthetic", "synth", 60), ("human",) * 2 + (10,)]
)
def test_recorded_episodes_replay_exactly(
    real_data: Path, kind: Literal["synthetic", "human"], name: str, count: int
) -> None:
    episodes = recorded("webshop_traces")[name]
    session = Session(_real_shop(real_data, kind))
    for episode in episodes:
        session.start(episode["idx"])
        for number, step in enumerate(episode["steps"]):
            done = session.step(step["a"]) if number else None
            assert session.observation("text") == step["obs"]
            assert session.observation("text_rich") == step["rich"]
            assert session.observation("url") == step["url"]
            assert available_actions(session) == step["av"]
            if done is not None:
                assert done == (step["r"], step["done"])
    assert len(episodes) == count


def _recorded_pages() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the action that led to each recorded page, and the page's texts."""
    for part in PAGES.read_text(encoding="utf-8").split("\n==================== ")[1:]:
        head, *lines = part.splitlines()
        fields = dict(
            line.split(": ", 1)
            for line in lines
            if line[:4] in ("URL ", "TEXT", "RICH", "AV  ", "rewa")
        )
        yield (
            head.removeprefix("step ").strip(),
            {key.strip(): value for key, value in fields.items()},
        )


def test_recorded_pages_with_attributes_are_the_same(real_data: Path) -> None:
    if not PAGES.exists():
        pytest.skip(f"{PAGES} is not there")
    session = start(_real_shop(real_data, "human"), goal=6, show_attributes=True)
    pages = list(_recorded_pages())
    assert pages[0][0] == "index"
    for action, fields in pages:
        if action != "index":
            reward, done = session.step(action)
            assert fields["reward/done/info"] == f"{0 if session.ignored else reward} {done} None"
        assert fields["URL"] == session.observation("url")
        assert ast.literal_eval(fields["TEXT"]) == session.observation("text")
        assert ast.literal_eval(fields["RICH"]) == session.observation("text_rich")
        assert ast.literal_eval(fields["AV"]) == available_actions(session)
    assert len(pages) == 21


# Actions


@example("[a]")
@example("a[[b]]")
@given(st.text(alphabet="[]ab \n\r\u2028") | st.text())
def test_actions_are_read_as_the_originals_expression_reads_them(action: str) -> None:
    match = ORIGINAL_FORM.match(action)
    assert parse_action(action) == (match and match.groups())


@pytest.mark.parametrize("action", ["[" * 10**6, "a[" * 10**6 + "]" * 10**6, "]" * 10**6])
def test_actions_are_read_in_linear_time(action: str) -> None:
    start = time.process_time()
    parse_action(action)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "action",
    [
        *("", "foo", "search", "search[]", "search[a[b]]", "Search[towel]", "\nsearch[towel]"),
        *("click[search]", "click[buy now]", "click[back to search]", "search [towel]", "[towel]"),
        *("search[<a> soft]", "search[<c>]", "search[tow\nel]"),
    ],
)
def test_what_the_store_does_not_understand_is_ignored(session: Session, action: str) -> None:
    before = session.page, session.state_hash
    assert session.step(action) == (0.0, False)
    assert session.ignored
    assert (session.page, session.state_hash) == before


def test_words_are_searched_in_small_letters_and_never_trimmed(session: Session) -> None:
    play(session, "search[ TOWEL  Ümlaut ] and more")
    assert session.page.keywords == ("", "towel", "", "ümlaut", "")
    assert session.observation("url").endswith("/search_results/0/+towel++ümlaut+/1")
    session.step("click[ next >]")
    assert session.ignored
    play(session, "click[NEXT >] and more")
    assert session.page.number == 2


def test_an_empty_search_finds_nothing(session: Session) -> None:
    play(session, "search[ ]")
    assert "Page 1 (Total results: 0)" in session.observation("text")


def test_a_search_is_understood_on_every_page(session: Session) -> None:
    for actions in ([], ["click[description]"], ["click[buy now]"]):
        play(open_product(session, SHIRT), *actions, "search[towel]")
        assert session.page.kind is PageKind.RESULTS
        assert session.page.product is None
        assert not session.page.chosen


def test_control_characters_and_half_characters_are_words_like_others(session: Session) -> None:
    for words in ("\x00\x1b\x7f", "\ud800", "☕ 毛巾", "a\rb\u2028c"):
        play(session, f"search[{words}]")
        assert session.page.keywords == tuple(words.split(" "))
        assert len(session.state_hash) == 32


# Searches by keys other than words


def test_a_department_is_listed_without_a_limit_on_hits(session: Session) -> None:
    play(session, "search[<c> beauty\t more]")
    assert session.page.total == len(TOWELS)
    assert [product.asin for product in session.page.results] == TOWELS[:10]
    play(session, "click[next >]", "click[next >]")
    assert [product.asin for product in session.page.results] == TOWELS[20:]


def test_products_are_found_by_their_query(session: Session) -> None:
    assert play(session, "search[<q>  towels ]").page.total == len(TOWELS)
    assert play(session, "search[<q> towel]").page.total == 0


def test_random_products_are_drawn_anew_on_each_view_and_the_same_in_each_episode(
    shop: Shop,
) -> None:
    def views(goal: int) -> list[tuple[Product, ...]]:
        session = start(shop, goal)
        return [play(session, "search[<r>]").page.results for _ in range(3)]

    first, second, third = views(0)
    assert first != second != third
    assert views(0) == [first, second, third]
    assert views(1) != [first, second, third]
    assert len({product.asin for product in first}) == 10


def test_random_products_make_another_state_of_each_view(session: Session) -> None:
    states = {play(session, "search[<r>]").state_hash for _ in range(3)}
    assert len(states) == 3


# Clicks with ambiguous names


def test_a_click_goes_by_its_name_first(session: Session) -> None:
    assert play(open_product(session, ODD), "click[features]").page.sub_page == "Features"
    assert play(session, "click[< prev]", "click[< prev]").page.kind is PageKind.RESULTS
    assert open_product(session, ODD).step("click[buy now]")[1]
    open_product(session, ODD).step("click[search]")
    assert session.ignored
    assert play(session, "click[next >]").page.chosen == {"kind": "next >"}


def test_an_option_takes_the_place_of_what_is_called_like_it(session: Session) -> None:
    names = list(open_product(session, ODD).clickables)
    fixed = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    options = ["both", "", "search", "next >", "a [b]", 'say "hi"', "ümlaut ☕", "kind"]
    assert names == fixed + options
    assert play(session, "click[both]").page.chosen == {"other": "both"}, "the last group has it"


@pytest.mark.parametrize("value", ["", "a [b]"])
def test_some_options_cannot_be_clicked(session: Session, value: str) -> None:
    assert value in open_product(session, ODD).clickables
    session.step(f"click[{value}]")
    assert session.ignored


@pytest.mark.parametrize("asin", [SMALL_LETTERS, "reviews"])
def test_products_whose_links_break_the_original_stay_closed(session: Session, asin: str) -> None:
    play(session, "search[thing in small letters named like a button]")
    assert asin in session.clickables
    session.step(f"click[{asin}]")
    assert session.ignored


def test_a_search_for_the_name_of_a_page_misleads_the_way_back(session: Session) -> None:
    play(session, "search[towel search_results]", f"click[{TOWELS[0].lower()}]", "click[< prev]")
    assert session.page.number == 0
    assert session.observation("text").endswith("Page 0 (Total results: 25) [SEP] Next >")
    assert list(session.clickables) == ["back to search", "next >"]
    assert play(session, "click[next >]").page.number == 1
    play(session, "search[towel item_page]", "click[next >]", "click[< prev]")
    play(session, f"click[{TOWELS[0].lower()}]", "click[features]", "click[< prev]")
    assert session.page.kind is PageKind.RESULTS


# Properties of random walks


def _walk(session: Session, seed: int, steps: int) -> Iterator[str]:
    """Yield the actions of a random walk, most of them valid; the caller takes them."""
    rng = random.Random(seed)
    words = ["towel", "shirt odd", "<c> beauty", "<c>", "<a>", "<r>", "<q> shirts", "item_page"]
    for _ in range(steps):
        clicks = [f"click[{name}]" for name in session.clickables]
        searches = [f"search[{rng.choice(words)}]", "nonsense", "click[nothing]"]
        yield rng.choice(clicks if clicks and rng.random() < 0.75 else searches)


@given(seed=st.integers(0, 2**32), goal=st.integers(0, 20))
def test_a_state_has_one_page(shop: Shop, seed: int, goal: int) -> None:
    """Equal hashes mean equal texts and actions, and ignored actions change nothing."""
    session, twin = start(shop, goal), start(shop, goal)
    seen: dict[str, Any] = {}
    for action in _walk(session, seed, steps=60):
        before = session.state_hash
        assert session.step(action) == twin.step(action)
        assert session.page == twin.page
        if session.ignored:
            assert session.state_hash == before
        shown = [session.observation(mode) for mode in ("text", "text_rich")]
        assert seen.setdefault(session.state_hash, (shown, available_actions(session))) == (
            shown,
            available_actions(session),
        )


def test_starting_anew_forgets_everything(session: Session) -> None:
    fresh = session.page, session.state_hash
    open_product(session, SHIRT).step("click[buy now]")
    play(session, "search[<r>]").step("nonsense")
    session.start(0)
    assert (session.page, session.state_hash) == fresh
    assert session.score_details is None
    assert not session.ignored
