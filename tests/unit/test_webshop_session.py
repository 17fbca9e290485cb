"""A session shows and does what the original store does: recorded episodes and its oddities."""

import ast
import json
import lzma
import random
import re
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from env_wrappers.webshop import pages
from env_wrappers.webshop.pages import Kind, Page
from env_wrappers.webshop.records import Product
from env_wrappers.webshop.session import Session, parse_action
from env_wrappers.webshop.shop import Shop, open_shop
from tests.unit.webshop_store import ODD, SHIRT, SMALL_LETTERS, TOWELS, write_store

SHARED = Path(__file__).parents[3] / "shared"
ARCHIVE = SHARED / "data/webshop_1k.tar.xz"
TRACES = SHARED / "parity/webshop_traces.json.xz"
PAGES = SHARED / "parity/webshop_pages.txt"
NOUNS = SHARED / "parity/webshop_title_nouns.json.xz"
ORIGINAL_FORM = re.compile(r"(.+)\[(.+)\]")
needs_recordings = pytest.mark.skipif(
    not all(path.exists() for path in (ARCHIVE, TRACES, PAGES, NOUNS)),
    reason="the recordings of the original and its 1,000 products are not part of the repository",
)


class RecordedNouns:
    """The nouns that the original found in the recordings."""

    name = "recorded"

    def __init__(self, file: Path) -> None:
        self._nouns: dict[str, list[str]] = json.loads(lzma.decompress(file.read_bytes()))["nouns"]

    def __call__(self, title: str) -> list[str]:
        return self._nouns[title]


@pytest.fixture(scope="module")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("webshop")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "webshop_1k"


def _real_shop(data: Path, goals: Literal["synthetic", "human"]) -> Shop:
    shop = open_shop(data, goals, price_seed=7, shuffle_seed=233, nouns="words")
    return replace(shop, nouns=RecordedNouns(NOUNS))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return open_shop(write_store(tmp_path_factory.mktemp("store") / "data"), nouns="words")


@pytest.fixture
def session(shop: Shop) -> Session:
    return _start(shop)


def _start(shop: Shop, goal: int = 0, show_attributes: bool = False) -> Session:
    session = Session(shop, show_attributes)
    session.start(goal)
    return session


def _play(session: Session, *actions: str) -> Session:
    for action in actions:
        session.step(action)
        assert not session.ignored, action
    return session


def _open(session: Session, asin: str) -> Session:
    """Go to a product's page."""
    product = session._shop.catalogue[session._shop.catalogue.index_of(asin) or 0]
    _play(session, f"search[{product.title}]")
    while asin.lower() not in session.clickables:
        _play(session, "click[next >]")
    return _play(session, f"click[{asin.lower()}]")


# What the original did


@needs_recordings
@pytest.mark.parametrize(
    ("kind", "name", "count"), [("synthetic", "synth", 60), ("human",) * 2 + (10,)]
)
def test_recorded_episodes_replay_exactly(
    real_data: Path, kind: Literal["synthetic", "human"], name: str, count: int
) -> None:
    episodes = json.loads(lzma.decompress(TRACES.read_bytes()))[name]
    session = Session(_real_shop(real_data, kind))
    for episode in episodes:
        session.start(episode["idx"])
        assert _goal(session) == {key: episode["goal"][key] for key in _goal(session)}
        for number, step in enumerate(episode["steps"]):
            done = session.step(step["a"]) if number else None
            assert session.observation("text") == step["obs"]
            assert session.observation("text_rich") == step["rich"]
            assert session.observation("url") == step["url"]
            assert session.available_actions() == step["av"]
            if done is not None:
                assert done == (step["r"], step["done"])
    assert len(episodes) == count


def _goal(session: Session) -> dict[str, Any]:
    goal, product = session.goal, session._shop.catalogue[session.goal.product]
    return {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        "instruction_text": goal.instruction,
        "attributes": list(goal.attributes),
        "price_upper": goal.price_limit,
        "goal_options": list(goal.options) if isinstance(goal.options, tuple) else goal.options,
    }


def _recorded_pages() -> Iterator[tuple[str, dict[str, str]]]:
    """The action that led to each recorded page, and its texts."""
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


@needs_recordings
def test_recorded_pages_with_attributes_are_the_same(real_data: Path) -> None:
    session = _start(_real_shop(real_data, "human"), goal=6, show_attributes=True)
    recorded = list(_recorded_pages())
    assert recorded[0][0] == "index"
    for action, fields in recorded:
        if action != "index":
            reward, done = session.step(action)
            assert fields["reward/done/info"] == f"{0 if session.ignored else reward} {done} None"
        assert fields["URL"] == session.observation("url")
        assert ast.literal_eval(fields["TEXT"]) == session.observation("text")
        assert ast.literal_eval(fields["RICH"]) == session.observation("text_rich")
        assert ast.literal_eval(fields["AV"]) == session.available_actions()
    assert len(recorded) == 21


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
    _play(session, "search[ TOWEL  Ümlaut ] and more")
    assert session.page.keywords == ("", "towel", "", "ümlaut", "")
    assert session.observation("url").endswith("/search_results/0/+towel++ümlaut+/1")
    session.step("click[ next >]")
    assert session.ignored
    _play(session, "click[NEXT >] and more")
    assert session.page.number == 2


def test_an_empty_search_finds_nothing(session: Session) -> None:
    _play(session, "search[ ]")
    assert "Page 1 (Total results: 0)" in session.observation("text")


def test_a_search_is_understood_on_every_page(session: Session) -> None:
    for actions in ([], ["click[description]"], ["click[buy now]"]):
        _play(_open(session, SHIRT), *actions, "search[towel]")
        assert session.page.kind is Kind.RESULTS
        assert session.page.product is None
        assert not session.page.chosen


def test_control_characters_and_half_characters_are_words_like_others(session: Session) -> None:
    for words in ("\x00\x1b\x7f", "\ud800", "☕ 毛巾", "a\rb\u2028c"):
        _play(session, f"search[{words}]")
        assert session.page.keywords == tuple(words.split(" "))
        assert len(session.state_hash) == 32


# Searches by something else than words


def test_a_department_is_listed_without_a_limit_on_hits(session: Session) -> None:
    _play(session, "search[<c> beauty\t more]")
    assert session.page.total == len(TOWELS)
    assert [product.asin for product in session.page.results] == TOWELS[:10]
    _play(session, "click[next >]", "click[next >]")
    assert [product.asin for product in session.page.results] == TOWELS[20:]


def test_products_are_found_by_their_query(session: Session) -> None:
    assert _play(session, "search[<q>  towels ]").page.total == len(TOWELS)
    assert _play(session, "search[<q> towel]").page.total == 0


def test_random_products_are_drawn_anew_on_each_view_and_the_same_in_each_episode(
    shop: Shop,
) -> None:
    def views(goal: int) -> list[tuple[Product, ...]]:
        session = _start(shop, goal)
        return [_play(session, "search[<r>]").page.results for _ in range(3)]

    first, second, third = views(0)
    assert first != second != third
    assert views(0) == [first, second, third]
    assert views(1) != [first, second, third]
    assert len({product.asin for product in first}) == 10


def test_random_products_make_another_state_of_each_view(session: Session) -> None:
    states = {_play(session, "search[<r>]").state_hash for _ in range(3)}
    assert len(states) == 3


# Pages


def test_pages_of_results_go_on_beyond_the_last(session: Session) -> None:
    _play(session, "search[<c> beauty]", *["click[next >]"] * 3)
    assert session.observation("text").endswith(
        "Back to Search [SEP] Page 4 (Total results: 25) [SEP] < Prev [SEP] Next >"
    )
    assert list(session.clickables) == ["back to search", "< prev", "next >"]
    assert _play(session, "click[< prev]").page.results


def test_each_page_leads_back_to_the_one_before(session: Session) -> None:
    _play(session, "search[<c> beauty]", "click[next >]")
    results = session.page
    _play(session, f"click[{TOWELS[12].lower()}]", "click[features]", "click[< prev]")
    assert session.page.kind is Kind.ITEM
    _play(session, "click[< prev]")
    assert replace(session.page, visited=frozenset()) == results
    assert session.page.visited == {TOWELS[12]}
    _play(session, "click[back to search]")
    assert session.observation("url") == "http://127.0.0.1:3000/0"
    assert not session.page.visited


def test_options_last_until_the_product_is_left(session: Session) -> None:
    _open(session, SHIRT)
    _play(session, "click[blue | white]", "click[small]", "click[x-large]", "click[description]")
    chosen = {"color": "blue | white", "size": "x-large"}
    assert session.observation("url").endswith(f"/Description/{chosen}")
    assert _play(session, "click[< prev]").page.chosen == chosen
    assert not _play(session, "click[< prev]").page.chosen


def test_the_order_of_choices_is_no_part_of_the_state(shop: Shop) -> None:
    choices = ["click[red]", "click[small]"]
    one, two = (_play(_open(_start(shop), SHIRT), *order) for order in (choices, choices[::-1]))
    assert one.observation("url") != two.observation("url")
    assert one.state_hash == two.state_hash


def test_what_was_clicked_is_marked_in_rich_text(session: Session) -> None:
    _play(_open(session, SHIRT), "click[red]", "click[small]")
    lines = session.observation("text_rich").split("\n")
    assert lines[:2] == ["You have clicked small.", "You have clicked red."]
    assert "  [clicked button] red [clicked button_]" in lines
    assert "  [button] x-large [button_]" in lines
    _play(session, "click[< prev]")
    assert f"\n\n[clicked button] {SHIRT} [clicked button_]\n" in session.observation("text_rich")
    assert f"\n\n[button] {ODD} [button_]\n" in _play(session, "search[odd]").observation(
        "text_rich"
    )


def test_rich_text_goes_by_the_address(session: Session) -> None:
    """A group's name, or a quoted word of the search, looks clicked; other scripts never do."""
    _play(session, 'search[odd "both" thing]', f"click[{ODD.lower()}]")
    clicked = re.compile(r"\[clicked button\] (.*) \[clicked button_\]")
    assert clicked.findall(session.observation("text_rich")) == ["both", "both"]
    _play(session, "click[ümlaut ☕]")
    assert clicked.findall(session.observation("text_rich")) == ["both", "both"]
    assert session.page.chosen == {"other": "ümlaut ☕"}
    _play(session, "search[odd]", f"click[{ODD.lower()}]", "click[features]", "click[< prev]")
    _play(session, 'click[say "hi"]')
    assert clicked.findall(session.observation("text_rich")) == []


def test_sub_pages(shop: Shop) -> None:
    def shown(name: str, asin: str = SHIRT) -> list[str]:
        session = _play(_open(_start(shop, show_attributes=True), asin), f"click[{name}]")
        assert list(session.clickables) == ["back to search", "< prev"]
        return session.observation("text").split(pages.SEPARATOR)[4:]

    assert shown("description") == ["All about Slim Cotton Shirt."]
    assert shown("features") == ["first line", "", "third line"]
    assert shown("features", ODD) == ["only one"]
    assert shown("reviews") == []
    category = "Clothing › Tops › Shirts"
    assert shown("attributes") == ["slim fit", "soft", "fashion", "shirts", category]


def test_attributes_are_shown_only_where_asked_for(shop: Shop) -> None:
    plain, full = (_open(_start(shop, show_attributes=show), SHIRT) for show in (False, True))
    assert set(full.clickables) - set(plain.clickables) == {"attributes"}
    plain.step("click[attributes]")
    assert plain.ignored


def test_a_purchase_shows_the_receipt_and_ends_nothing(session: Session) -> None:
    reward, done = _play(_open(session, ODD), "click[kind]").step("click[buy now]")
    assert done
    assert session.score is not None
    assert reward == session.score.reward
    text = session.observation("text").split(pages.SEPARATOR)
    assert text[5:9] == ["asin", ODD, "options", '{"other": "kind"}']
    assert text[-3:] == [str(reward), "Reward Details", "None"]
    assert session.available_actions() == {"has_search_bar": False, "clickables": []}
    assert session.step("click[buy now]") == (0.0, False)
    assert session.ignored


def test_options_of_the_receipt_are_sorted_and_safe_in_html(shop: Shop) -> None:
    product = shop.catalogue[0]
    chosen = {"b": "<it's> & 'ü'", "a": "x"}
    page = Page("0", "buy", kind=Kind.DONE, product=product, chosen=chosen, score=0.5)
    options = r'{"a": "x", "b": "\u003cit\u0027s\u003e \u0026 \u0027\u00fc\u0027"}'
    assert pages.text(page).split(pages.SEPARATOR)[8] == options
    assert pages.url(page).endswith("/{'b': \"<it's> & 'ü'\", 'a': 'x'}")


@pytest.mark.parametrize(
    ("words", "shown"),
    [("", []), (" \t", [""]), ("\n ", []), ("\xa0\n", [""]), (" a \n", ["a"]), ("\x0b", [""])],
)
def test_blank_texts_are_what_html_makes_of_them(words: str, shown: list[str]) -> None:
    product = _product(title=words)
    page = Page("0", "buy", kind=Kind.RESULTS, keywords=("x",), number=1, results=(product,))
    assert pages.text(page).split(pages.SEPARATOR)[6:] == [*shown, "$1.0"]


def test_a_page_without_a_product_says_so() -> None:
    with pytest.raises(ValueError, match="index page shows no single product"):
        _ = Page("0", "buy").item


def _product(**fields: Any) -> Product:
    common: dict[str, Any] = {"index": 0, "asin": "A", "title": "", "description": ""}
    common |= {"bullets": (), "prices": (1.0,), "price_tag": "$1.0", "options": {}}
    common |= {"category": "", "query": "", "product_category": "", "attributes": ()}
    return Product(**common | fields)


# Clicks that mean something else than they seem to


def test_a_click_goes_by_its_name_first(session: Session) -> None:
    assert _play(_open(session, ODD), "click[features]").page.sub_page == "Features"
    assert _play(session, "click[< prev]", "click[< prev]").page.kind is Kind.RESULTS
    assert _open(session, ODD).step("click[buy now]")[1]
    _open(session, ODD).step("click[search]")
    assert session.ignored
    assert _play(session, "click[next >]").page.chosen == {"kind": "next >"}


def test_an_option_takes_the_place_of_what_is_called_like_it(session: Session) -> None:
    names = list(_open(session, ODD).clickables)
    fixed = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    options = ["both", "", "search", "next >", "a [b]", 'say "hi"', "ümlaut ☕", "kind"]
    assert names == fixed + options
    assert _play(session, "click[both]").page.chosen == {"other": "both"}, "the last group has it"


@pytest.mark.parametrize("value", ["", "a [b]"])
def test_some_options_cannot_be_clicked(session: Session, value: str) -> None:
    assert value in _open(session, ODD).clickables
    session.step(f"click[{value}]")
    assert session.ignored


@pytest.mark.parametrize("asin", [SMALL_LETTERS, "reviews"])
def test_products_whose_links_break_the_original_stay_closed(session: Session, asin: str) -> None:
    _play(session, "search[thing in small letters named like a button]")
    assert asin in session.clickables
    session.step(f"click[{asin}]")
    assert session.ignored


def test_a_search_for_the_name_of_a_page_misleads_the_way_back(session: Session) -> None:
    _play(session, "search[towel search_results]", f"click[{TOWELS[0].lower()}]", "click[< prev]")
    assert session.page.number == 0
    assert session.observation("text").endswith("Page 0 (Total results: 25) [SEP] Next >")
    assert list(session.clickables) == ["back to search", "next >"]
    assert _play(session, "click[next >]").page.number == 1
    _play(session, "search[towel item_page]", "click[next >]", "click[< prev]")
    _play(session, f"click[{TOWELS[0].lower()}]", "click[features]", "click[< prev]")
    assert session.page.kind is Kind.RESULTS


# What holds for any way through the store


def _walk(session: Session, seed: int, steps: int) -> Iterator[str]:
    """Play a random walk and yield its actions; most of them are possible."""
    rng = random.Random(seed)
    words = ["towel", "shirt odd", "<c> beauty", "<c>", "<a>", "<r>", "<q> shirts", "item_page"]
    for _ in range(steps):
        clicks = [f"click[{name}]" for name in session.clickables]
        searches = [f"search[{rng.choice(words)}]", "nonsense", "click[nothing]"]
        yield rng.choice(clicks if clicks and rng.random() < 0.75 else searches)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), goal=st.integers(0, 20))
def test_a_state_has_one_page(shop: Shop, seed: int, goal: int) -> None:
    """Equal hashes, equal texts and choices; what is ignored changes nothing."""
    session, twin = _start(shop, goal), _start(shop, goal)
    seen: dict[str, Any] = {}
    for action in _walk(session, seed, steps=60):
        before = session.state_hash
        assert session.step(action) == twin.step(action)
        assert session.page == twin.page
        if session.ignored:
            assert session.state_hash == before
        shown = [session.observation(mode) for mode in ("text", "text_rich")]
        assert seen.setdefault(session.state_hash, (shown, session.available_actions())) == (
            shown,
            session.available_actions(),
        )


def test_starting_anew_forgets_everything(session: Session) -> None:
    fresh = session.page, session.state_hash
    _open(session, SHIRT).step("click[buy now]")
    _play(session, "search[<r>]").step("nonsense")
    session.start(0)
    assert (session.page, session.state_hash) == fresh
    assert session.score is None
    assert not session.ignored
