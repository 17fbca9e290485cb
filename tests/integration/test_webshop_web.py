"""`hgpo play … --web` in a real browser, as a user starts it."""

import html
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.integration.browser import Browser, is_drawn, needs_chromium
from tests.processes import Command
from tests.unit.cli.test_play_command import step, write_episode
from tests.unit.env_wrappers.textcraft.textcraft_data import write_recipes
from tests.unit.env_wrappers.webshop.webshop_store import ODD, write_store

pytestmark = [pytest.mark.integration, needs_chromium]
ADDRESS = r"http://127\.0\.0\.1:\d+"


@contextmanager
def served(log: Path, *words: object) -> Iterator[str]:
    """Run `hgpo play` on a free port; yield its address, and end it with SIGINT."""
    with Command([*map(str, words), "--web", "--port", "0"], log, "play") as command:
        found = command.wait_until(lambda: re.match(ADDRESS, log.read_text()), 60)
        yield found[0]
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(30) == 130
        assert log.read_text().count("\n") == 1, log.read_text()


def send(address: str, **form: str) -> str:
    """Send a form as a browser does; return the address of the next page."""
    with urllib.request.urlopen(address, urlencode(form).encode()) as response:
        return str(response.url)


def test_shopping(browser: Browser, tmp_path: Path) -> None:
    """Actions with special characters survive the round trip through the page."""
    with served(
        tmp_path / "log.txt", "webshop", "--data", write_store(tmp_path / "data")
    ) as address:
        assert 'placeholder="Any action' in browser.open(address)
        results = send(f"{address}/steps/1", action="odd thing")
        assert is_drawn(browser.picture(results, tmp_path / "results.png", 1000), 1000)
        page = send(results, action=f"click[{ODD.lower()}]")
        for label in ('say "hi"', "ümlaut ☕"):
            actions = re.findall(r'<button name="action" value="([^"]*)"', browser.open(page))
            action = next(a for a in map(html.unescape, actions) if label in a)
            page = send(page, action=action)
            assert ' class="bad"' not in browser.open(page)
        assert is_drawn(browser.picture(page, tmp_path / "item.png", 420), 420)
        assert "<dt>score</dt>" in browser.open(send(page, action="click[buy now]"))


def test_an_episode(browser: Browser, tmp_path: Path) -> None:
    turns = [
        step(anchor="WebShop [SEP] Search", action="search[towel]"),
        step(anchor="Back to Search [SEP] B0X [SEP] <b>bold</b>", action="click[b0x]"),
    ]
    file = write_episode(tmp_path / "x.jsonl", *turns)
    with served(tmp_path / "log.txt", "episode", file, "--index", 0) as address:
        assert "Step 1 of 2" in browser.open(address)
        second = browser.open(f"{address}/steps/2")
        assert "<mark>B0X</mark>" in second
        assert "<p>&lt;b&gt;bold&lt;/b&gt;</p>" in second
        assert is_drawn(browser.picture(f"{address}/steps/2", tmp_path / "e.png", 1000), 1000)


def test_a_game(browser: Browser, tmp_path: Path) -> None:
    data = write_recipes(tmp_path / "data")
    with served(tmp_path / "log.txt", "textcraft", "--data", data, "--split", "train") as address:
        assert "Step 1 of 1" in browser.open(address)
        second = send(f"{address}/steps/1", action="inventory")
        assert "Step 2 of 2" in browser.open(second)
        assert is_drawn(browser.picture(second, tmp_path / "game.png", 1280), 1280)
