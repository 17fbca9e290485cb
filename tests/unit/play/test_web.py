"""Pages of recorded episodes and of WebShop, without a browser and without a network."""

import html
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from env_wrappers.errors import DataError
from env_wrappers.webshop.env import WebShopEnv
from env_wrappers.webshop.shop import open_shop
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.play.web.application import listen, render
from hgpo_rllib.play.web.pages import Game, episode_app
from tests.unit.cli.test_play_command import step
from tests.unit.env_wrappers.webshop.webshop_store import ODD, SHIRT
from tests.unit.play.addresses import ADDRESS, WANTED

_BUTTON = re.compile(r'<button name="action" value="([^"]*)"')


@pytest.fixture
def client(store: Path) -> Iterator[TestClient]:
    """Yield a client of a game in the store."""
    env = WebShopEnv(store, "test", nouns="words", observation_mode="text_rich")
    with TestClient(Game(env, {"options": {"goal": 0}}).app, ADDRESS) as client:
        yield client


def act(client: TestClient, action: str) -> str:
    """Search or click on the current page, and return the next one."""
    response = client.post(client.get("/").url.path, data={"action": action})
    assert response.status_code == 200
    return response.text


def buttons(page: str) -> list[str]:
    """Return the actions of the page's buttons."""
    return [html.unescape(action) for action in _BUTTON.findall(page)]


class TestStore:
    def test_from_a_search_to_the_score(self, client: TestClient, store: Path) -> None:
        """Words are searched for, and buttons send the agent's actions."""
        goals = open_shop(store, nouns="words").goals
        number = next(goal.index for goal in goals if goal.options == WANTED)
        client.post("/games", data={"number": str(number)})
        page = act(client, "Slim cotton SHIRT")
        assert f"click[{SHIRT.lower()}]" in buttons(page)
        for option in (SHIRT.lower(), "red", "small"):
            page = act(client, f"click[{option}]")
        assert "[clicked button] small [clicked button_]" in page
        page = act(client, "click[buy now]")
        assert '<span class="good">won</span>' in page
        assert "<dt>score</dt><dd>1.000</dd>" in page
        assert buttons(page) == []

    def test_labels_with_signs_arrive_as_they_are(self, client: TestClient) -> None:
        act(client, "odd thing")
        page = act(client, f"click[{ODD.lower()}]")
        for label in ('say "hi"', "ümlaut ☕"):
            assert f"click[{label}]" in buttons(page)
            page = act(client, f"click[{label}]")
            assert ' class="bad"' not in page

    @pytest.mark.parametrize("words", [" ", "x" * 20_000, "\ud83d\n\x00\x1b[", "<a>", "<r>"])
    def test_odd_searches(self, client: TestClient, words: str) -> None:
        body = {"action": words.encode("utf-8", "surrogatepass")}
        assert client.post("/steps/1", data=body).status_code == 200

    def test_what_is_shown_is_no_markup(self, client: TestClient) -> None:
        attack = '"><script>alert(1)</script>'
        act(client, attack)
        page = client.get("/steps/1").text
        assert "<script" not in page
        assert html.escape(attack) in page.replace("&#34;", "&quot;")

    def test_a_game_that_cannot_be_loaded(
        self, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A game that fails to load ends the previous one; another game can be played."""
        env = WebShopEnv(store, "test", nouns="words", observation_mode="text_rich")

        def fail(**_: object) -> None:
            raise DataError("damaged")

        with TestClient(Game(env, {"options": {"goal": 0}}).app, ADDRESS) as client:
            with monkeypatch.context() as patch:
                patch.setattr(env, "reset", fail)
                assert client.post("/games", data={"number": "1"}).status_code == 502
            client.post("/steps/1", data={"action": "shirt"})
            assert buttons(client.get("/").text) == []
            client.post("/games", data={})
            assert buttons(act(client, "shirt"))

    @pytest.mark.parametrize("body", [b"", b"x=1", b"\xff"])
    def test_forms_that_are_none(self, client: TestClient, body: bytes) -> None:
        assert client.post("/steps/1", content=body).status_code == 400


class TestProtection:
    def test_nothing_comes_from_elsewhere_or_runs(self, client: TestClient) -> None:
        for path in ("/", "/style.css", "/nix"):
            response = client.get(path)
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert not re.search(r"https?://|<script|style=|url\(|@import", response.text)

    def test_names_that_are_not_this_machine(self, client: TestClient) -> None:
        assert client.get("/", headers={"host": "example.org"}).status_code == 400
        assert client.get("/", headers={"host": "localhost:3000"}).status_code == 200

    def test_forms_of_other_pages(self, client: TestClient) -> None:
        for origin, status in (("http://example.org", 403), ("null", 403), (ADDRESS, 200)):
            response = client.post("/games", headers={"origin": origin})
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
            shown = client.get("/steps/1").text
            assert "<dt>game</dt>" in shown
            assert "iteration" not in shown
            assert "reward" not in shown
        evaluated = episode({}, seed=1, place=3)
        with TestClient(episode_app(evaluated), ADDRESS) as client:
            assert "<dt>seed</dt><dd>1</dd>" in client.get("/steps/1").text
        with TestClient(episode_app({"steps": []}), ADDRESS) as client:
            assert "the episode has 0" in client.get("/").text


def test_half_a_character_pair() -> None:
    """A lone surrogate, which JSON allows and UTF-8 does not, does not break a page."""
    assert b"a ? b" in render("error.html.jinja", message="a \ud83d b").body
    with TestClient(episode_app(episode(step(anchor="\ud83d"), goal="\ud83d")), ADDRESS) as client:
        assert "\\ud83d" in client.get("/steps/1").text
