"""Reports in a real browser: no errors, no cut content, and choosing episodes."""

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hgpo_rllib.reporting.report import write_report
from tests.integration.browser import Browser, is_drawn, needs_chromium
from tests.unit.reporting.reporting_rows import (
    EPISODES,
    PROMPT,
    crash,
    diagnostics_row,
    make_run,
    metrics_row,
    write_jsonl,
)

pytestmark = [pytest.mark.integration, needs_chromium]


def one(folder: Path) -> list[Path]:
    run = make_run(folder / "run")
    write_jsonl(run / "metrics.jsonl", [metrics_row(i) | diagnostics_row(i) for i in range(1, 5)])
    for iteration in (1, 2):
        rows = [row | {"iteration": iteration, "group": "other"} for row in EPISODES[:2]]
        write_jsonl(run / "episodes" / f"iteration_{iteration:04d}.jsonl", rows)
    return [run]


def seeds(folder: Path) -> list[Path]:
    return [make_run(folder / f"a-long-name-of-a-run-{i}", seed=i) for i in range(3)]


def sweep(folder: Path) -> list[Path]:
    names = ("hgpo", "gigpo", "grpo")
    for name in names:
        for seed in range(2):
            make_run(folder / f"{name}-{seed}", seed=seed, estimator=name, context_length=2)
    crash(folder / "grpo-1")
    return [folder]


def crashed(folder: Path) -> list[Path]:
    return [crash(make_run(folder / "run"))]


@pytest.fixture(scope="module", params=[one, seeds, sweep, crashed], ids=lambda make: make.__name__)
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Return the kind of a report, and its file."""
    make: Callable[[Path], list[Path]] = request.param
    folder = tmp_path_factory.mktemp(make.__name__)
    return make.__name__, write_report(make(folder), folder / "report.html")


def after(page: Path, script: str) -> str:
    """Write a copy of the page that runs a script after loading; return its address."""
    copy = page.with_name("copy.html")
    copy.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
    return copy.as_uri()


def text_of(page: str) -> str:
    """Return the page's visible text, without the selection lists."""
    body = re.sub(r"<(script|select)\b.*?</\1>", "", page.partition("<body>")[2], flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", body)))


def test_opens_and_nothing_is_cut(
    report: tuple[str, Path], browser: Browser, tmp_path: Path
) -> None:
    """There is no console message and no NaN, and the page fits into a narrow window."""
    kind, file = report
    script = "document.title = `wide ${document.documentElement.scrollWidth}`"
    page = browser.open(after(file, script), width=400)
    found = re.search(r"<title>wide (\d+)</title>", page)
    assert found is not None
    assert int(found[1]) <= 500, "Chromium's windows are 500 pixels wide at least"
    text = text_of(page)
    for nothing in ("undefined", "NaN", "[object", "null"):
        assert nothing not in text.partition("Configuration")[0]
    assert ("advantage ≤ " in text) == (kind != "crashed")
    assert is_drawn(browser.picture(file.as_uri(), tmp_path / "page.png", 1280), 1280)


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of one run with the episodes of three iterations."""
    folder = tmp_path_factory.mktemp("page")
    return write_report(one(folder), folder / "report.html")


def test_the_newest_iteration_is_open(run_page: Path, browser: Browser) -> None:
    """The page shows a step's details, escapes model output, and colors advantages by sign."""
    page = browser.open(run_page.as_uri())
    assert re.findall(r"<option[^>]*>(\d+)</option>", page) == ["1", "2", "4"]
    text = text_of(page)
    assert "4 of 4 episodes (1 of 1 groups) of iteration 4, train, are in this file." in text
    assert "> go to shelf 1 inadmissible" in text
    assert "advantage +0.50 reward 0.00 return 9.50 group sizes 4 · 2 · 1" in text
    assert f"<pre>{html.escape(PROMPT, quote=False)}</pre>" in page
    (better,) = re.findall(r'aria-label="1 step 0" style="background: ([^"]*)"', page)
    (worse,) = re.findall(r'aria-label="3 step 0" style="background: ([^"]*)"', page)
    assert "var(--up)" in better
    assert "var(--down) 100%" in worse


def test_an_address_opens_an_episode(run_page: Path, browser: Browser) -> None:
    text = text_of(browser.open(f"{run_page.as_uri()}#episode-2-0-3"))
    assert "3 failure 2 steps, return 0.00" in text
    assert "advantage −2.00" in text
    elsewhere = text_of(browser.open(f"{run_page.as_uri()}#episode-9-9-9"))
    assert "0 success 2 steps, return 10.00" in elsewhere


def test_choices_and_squares_open_episodes(run_page: Path, browser: Browser) -> None:
    script = """
        const choose = (name, value) => {
          const list = document.getElementById(`choose-${name}`);
          list.value = value;
          list.dispatchEvent(new Event("change"));
        };
        choose("set", 0);
        choose("member", 1);
    """
    text = text_of(browser.open(after(run_page, script)))
    assert "2 of 2 episodes (1 of 1 groups) of iteration 1" in text
    assert "1 success 3 steps, return 10.00" in text
    click = "document.querySelector('[aria-label=\"3 step 1\"]').click();"
    assert "3 failure 2 steps" in text_of(browser.open(after(run_page, click)))
