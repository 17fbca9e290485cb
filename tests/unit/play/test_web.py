"""`hgpo play webshop --web`: its pages, without a browser and without a network."""

import html
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop, open_shop
from hgpo_rllib.config import ConfigError
from hgpo_rllib.play.web.application import listen, render
from hgpo_rllib.play.web.episode import episode_app
from hgpo_rllib.play.web.store import MOST_VISITS, Store
from tests.unit.cli.test_play_command import step
from tests.unit.env_wrappers.webshop.webshop_store import ODD, SHIRT, TOWELS, write_store
from tests.unit.play.test_play import WANTED

ADDRESS = "http://127.0.0.1:3000"
_BUTTON = re.compile(r'<button name="click" value="([^"]*)"( class="chosen")?')


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Return a small store."""
    return open_shop(write_store(tmp_path_factory.mktemp("webshop") / "data"), nouns="words")


@pytest.fixture
def client(shop: Shop) -> Iterator[TestClient]:
    """Return a browser in front of the store."""
    with TestClient(Store(shop, range(len(shop.goals))).app, ADDRESS) as client:
        yield client


@pytest.fixture
def goal(shop: Shop) -> int:
    """Return the number of the goal for a small red shirt."""
    return next(goal.index for goal in shop.goals if goal.options == WANTED)


def enter(client: TestClient, goal: object = 0) -> str:
    """Start a visit; return its path."""
    response = client.post("/visits", data={"goal": str(goal)}, follow_redirects=False)
    assert response.status_code == 303
    return response.headers["location"]


def act(client: TestClient, visit: str, **form: str) -> str:
    """Search or click; return the page."""
    response = client.post(visit, data=form)
    assert response.status_code == 200
    assert str(response.url) == ADDRESS + visit
    return response.text


def buttons(page: str) -> dict[str, bool]:
    """Return what can be clicked, and whether it is shown as chosen."""
    return {html.unescape(name): bool(chosen) for name, chosen in _BUTTON.findall(page)}


class TestStore:
    def test_from_the_list_of_goals_to_the_score(
        self, client: TestClient, shop: Shop, goal: int
    ) -> None:
        front = client.get("/").text
        assert f"29 products, {len(shop.goals)} goals" in front
        assert "page 1 of 2" in front
        assert client.get("/?page=2").text.count('name="goal" value="') == len(shop.goals) - 20 + 1
        visit = enter(client, goal)
        assert shop.goals[goal].instruction in html.unescape(client.get(visit).text)
        page = act(client, visit, words="Slim cotton SHIRT")
        assert 'value="slim cotton shirt"' in page
        page = act(client, visit, click=SHIRT.lower())
        assert "Slim Cotton Shirt</h1>" in page
        assert "$12.5<" in page
        act(client, visit, click="red")
        page = act(client, visit, click="small")
        chosen = {name for name, is_chosen in buttons(page).items() if is_chosen}
        assert chosen == {"red", "small"}
        page = act(client, visit, click="features")
        assert "<li>third line</li>" in page
        assert buttons(page) == {"back to search": False, "< prev": False}
        act(client, visit, click="< prev")
        page = act(client, visit, click="buy now")
        assert "Score 1.000" in page
        for cell in ("<td>1.000<", "<dd>slim fit<", "<dd>color: red, size: small<"):
            assert cell in page
        assert buttons(page) == {}
        assert act(client, visit, words="towel").count("B0TOWEL") >= 10  # as in the original

    def test_the_page_is_what_the_agent_sees(self, client: TestClient, shop: Shop) -> None:
        """The same clicks, and in the fold-out the very observation and actions."""
        visit, session = enter(client, 2), Session(shop)
        session.start(2)
        for name, argument in (
            ("words", "towel"),
            ("click", "next >"),
            ("click", "next >"),
            ("click", "< prev"),
            ("words", "odd thing"),
            ("click", ODD.lower()),
            ("click", "both"),
            ("click", 'say "hi"'),
            ("click", "a [b]"),
            ("click", "description"),
            ("click", "reviews"),
            ("click", "< prev"),
            ("click", "buy now"),
        ):
            page = act(client, visit, **{name: argument})
            session.step(f"{'search' if name == 'words' else 'click'}[{argument}]")
            seen = re.search(r'<div class="seen">(.*?)</div>', page, re.DOTALL)
            assert seen is not None
            parts = re.findall(r"<p>(.*?)</p>", seen.group(1), re.DOTALL)
            assert [html.unescape(part) for part in parts] == session.observation("text").split(
                " [SEP] "
            )
            assert set(buttons(page)) == {name for name in session.clickables if name}
            for action in session.clickables:
                assert html.escape(f"click[{action}]").replace("&#x27;", "&#39;") in page.replace(
                    "&#34;", "&quot;"
                )
            assert ("did not understand" in page) == session.ignored

    def test_an_option_of_two_groups_is_chosen_in_one(self, client: TestClient) -> None:
        visit = enter(client)
        act(client, visit, words="odd thing")
        act(client, visit, click=ODD.lower())
        assert act(client, visit, click="both").count('class="chosen"') == 1

    def test_blanks_of_a_search_stay(self, client: TestClient) -> None:
        """They are keywords to the store."""
        assert 'value=" odd  thing "' in act(client, enter(client), words=" odd  thing ")

    def test_tabs_do_not_disturb_each_other(self, client: TestClient) -> None:
        first, second = enter(client), enter(client, 1)
        assert first != second
        act(client, first, words="towel")
        page = act(client, second, click=TOWELS[0].lower())
        assert "did not understand" in page
        assert "results" in client.get(first).text
        assert "results" not in client.get(second).text

    def test_any_goal(self, client: TestClient) -> None:
        assert client.get(enter(client, "any")).status_code == 200

    def test_what_is_shown_is_no_markup(self, client: TestClient, shop: Shop) -> None:
        attack = '"><script>alert(1)</script>'
        page = act(client, enter(client), words=attack)
        assert "<script" not in page
        assert html.escape(attack) in page.replace("&#34;", "&quot;")

    @pytest.mark.parametrize("words", ["", " ", "x" * 20_000, "\ud83d\n\x00\x1b[", "<a>", "<r>"])
    def test_odd_searches(self, client: TestClient, words: str) -> None:
        body = {"words": words.encode("utf-8", "surrogatepass")}
        assert client.post(enter(client), data=body).status_code == 200

    def test_the_number_of_visits_is_bounded(self, client: TestClient) -> None:
        first, second = enter(client), enter(client)
        for _ in range(MOST_VISITS - 2):
            enter(client)
        assert client.get(first).status_code == 200  # and so it is not the next to go
        enter(client)
        assert client.get(second).status_code == 404
        assert client.get(first).status_code == 200

    @pytest.mark.parametrize(
        ("path", "status", "named"),
        [
            ("/visits/nix", 404, "This visit is over"),
            ("/nix", 404, "Not Found"),
            ("/visits", 405, "Method Not Allowed"),
            ("/?page=0", 404, "There is no 0: 1 to 2."),
            ("/?page=3", 404, "There is no 3"),
            ("/?page=x<b>", 400, "&#39;x&lt;b&gt;&#39; is not a number"),
        ],
    )
    def test_errors_are_pages(self, client: TestClient, path: str, status: int, named: str) -> None:
        response = client.get(path)
        assert response.status_code == status
        assert named in response.text
        assert 'href="/"' in response.text

    @pytest.mark.parametrize(
        ("goal", "status"), [("-1", 400), ("", 400), ("9" * 30, 400), ("999", 404), ("²", 400)]
    )
    def test_goals_that_are_none(self, client: TestClient, goal: str, status: int) -> None:
        assert client.post("/visits", data={"goal": goal}).status_code == status

    @pytest.mark.parametrize(
        ("body", "status"),
        [(b"", 400), (b"x=1", 400), (b"\xff", 400)],
    )
    def test_forms_that_are_none(self, client: TestClient, body: bytes, status: int) -> None:
        assert client.post(enter(client), content=body).status_code == status


class TestProtection:
    def test_nothing_comes_from_elsewhere_or_runs(self, client: TestClient) -> None:
        visit = enter(client)
        for path in ("/", visit, "/style.css", "/nix"):
            response = client.get(path)
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert not re.search(r"https?://|<script|style=|url\(|@import", response.text)

    def test_names_that_are_not_this_machine(self, client: TestClient) -> None:
        assert client.get("/", headers={"host": "example.org"}).status_code == 400
        assert client.get("/", headers={"host": "localhost:3000"}).status_code == 200

    def test_forms_of_other_pages(self, client: TestClient) -> None:
        for origin, status in (("http://example.org", 403), ("null", 403), (ADDRESS, 200)):
            response = client.post("/visits", data={"goal": "0"}, headers={"origin": origin})
            assert response.status_code == status

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"--port {port} cannot be used .*choose another"):
                listen(port)


def episode(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a recorded episode."""
    facts = {"goal": "a <b>towel</b>", "success": True, "episode_return": 10.0, "game": "test/1"}
    return facts | {"steps": list(steps)} | changes


class TestEpisode:
    def test_step_by_step(self) -> None:
        steps = [
            step(anchor="WebShop [SEP] Search", action="search[x]"),
            step(anchor="A [SEP] B0X [SEP] b0x <i>", action="click[B0x]", inadmissible=True),
            step(anchor="line one\nline two", completion="<think>\x1b[1m</think>"),
        ]
        with TestClient(episode_app(episode(*steps)), ADDRESS) as client:
            first = client.get("/")
            assert first.url.path == "/steps/1"
            assert "Step 1 of 3" in first.text
            assert "a &lt;b&gt;towel&lt;/b&gt;" in first.text
            assert "<p>WebShop</p>" in first.text
            assert "search[x]" in first.text
            assert 'href="/steps/2" class="bad"' in first.text
            assert 'rel="prev"' not in first.text
            second = client.get("/steps/2").text
            assert "<mark>B0X</mark>" in second
            assert second.count("<mark>") == 1
            assert "b0x &lt;i&gt;" in second
            assert "action, inadmissible" in second
            third = client.get("/steps/3").text
            assert "<p>line two</p>" in third
            assert "\\x1b[1m" in third
            assert "-0.250" in third
            assert 'rel="next"' not in third
            assert client.get("/steps/4").status_code == 404
            assert client.get("/steps/x").status_code == 404

    def test_what_is_missing(self) -> None:
        with TestClient(episode_app(episode({})), ADDRESS) as client:
            assert "n/a" in client.get("/steps/1").text
        with TestClient(episode_app({"steps": []}), ADDRESS) as client:
            assert "no steps" in client.get("/").text


def test_half_a_character_pair() -> None:
    """JSON can hold one, and no encoding takes it."""
    assert b"a ? b" in render("error.html.jinja", message="a \ud83d b").body
    with TestClient(episode_app(episode(step(anchor="\ud83d"), goal="\ud83d")), ADDRESS) as client:
        assert "\\ud83d" in client.get("/steps/1").text
