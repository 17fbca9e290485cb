"""Checks of the documentation: links, file names, commands, settings and code."""

from pathlib import Path

import pytest

from tests.unit.project import pages

ROOT = pages.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_page(page: Path) -> None:
    """Links, file names, commands, settings in YAML, and Python code of a page are valid."""
    text = page.read_text()
    assert pages.link_problems(page, text) == []
    assert pages.path_problems(text) == []
    assert pages.command_problems(text) == []
    assert pages.yaml_problems(text) == []
    assert pages.python_problems(text) == []


def test_every_page_is_reached() -> None:
    """Every page is reachable by links from the README or the quick start."""
    reached, new = set(), {ROOT / "README.md", ROOT / "docs/quickstart.md"}
    while new:
        reached |= new
        found = {
            (path.parent / link.partition("#")[0]).resolve()
            for path in new
            for link, _ in pages.LINK.findall(pages.split(path.read_text())[0])
            if link.partition("#")[0].endswith(".md") and "://" not in link
        }
        new = {path for path in found - reached if path.is_file()}
    assert set(PAGES) <= reached


HERE = ROOT / "docs" / "concepts.md"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a](missing.md)", "missing.md: no such file"),
        ("[a](algorithm.md#no-such)", "algorithm.md#no-such: no such heading"),
        ("# One `two`, three\n[a](#one-two-four)", "#one-two-four: no such heading"),
        ("# A\n# A\n[a](#a-2)", "#a-2: no such heading"),
        ("![a](none.png)", "none.png: no such file"),
        ("[a](../../outside.md)", "../../outside.md: no such file"),
        ("[a](https:/example.org/x)", "https:/example.org/x: no address"),
        ("[a](http://localhost)", "http://localhost: no address"),
        ("[a](ftp://example.org)", "ftp://example.org: no address"),
    ],
)
def test_broken_links_are_found(text: str, problem: str) -> None:
    """Each kind of broken link is found."""
    assert pages.link_problems(HERE, text) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        "# One `two`, three\n[a](#one-two-three)",
        "# A\n# A\n[a](#a-1)",
        "[a *b*\nc](algorithm.md#1-the-estimator)",
        "[a](../README.md) <https://example.org/x?y=z#u>",
        "`[a](missing.md)`",
        "```\n[a](missing.md)\n```",
        "~~~text\n```\n[a](missing.md)\n~~~",
    ],
)
def test_good_links_pass(text: str) -> None:
    """Valid links pass, and so does text that is not a link."""
    assert pages.link_problems(HERE, text) == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("`hgpo_rllib/nothing.py`", ["hgpo_rllib/nothing.py: no such file"]),
        ("`tests/unit/project/test_*.py`, `docs/`, `runs/x.py`, `hgpo_rllib/config.py`", []),
        ("a @RESULT@ b", ["@RESULT@: left over"]),
    ],
)
def test_missing_files_are_found(text: str, problems: list[str]) -> None:
    """Missing files in folders of the repository are found; patterns may match any file."""
    assert pages.path_problems(text) == problems


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("hgpo tarin x.yaml", "no sub-command tarin"),
        (".venv/bin/hgpo train x.yaml --dry", "--dry"),
        ("hgpo report", "runs"),
        ("hgpo data check webshop --limit many", "--limit"),
        ("hgpo train tuned_examples/none.yaml", "no such file: tuned_examples/none.yaml"),
        ("hgpo train mine.yaml learner.lrr=1", "learner.lrr"),
        ("hgpo train mine.yaml \\\n  learner.lr=-1", "learner.lr"),
        ("A=1 hgpo train mine.yaml seed=x", "seed"),
        ("cd x && hgpo train mine.yaml algorithm.gamma=7  # note", "algorithm.gamma"),
        ("hgpo sweep mine.yaml --grid algorithm.k=1,2", "algorithm.k"),
        ("ray job submit --working-dir . -- hgpo train mine.yaml seeds=1", "seeds"),
        ("make tarin", "no target tarin"),
        ("make train ARG=x", "no variable ARG"),
        ('make train ARGS="iterations=0"', "iterations"),
        ("make train CONFIG=tuned_examples/none.yaml", "no such file"),
        ("python -m hgpo_rllib.nothing", "no such module"),
    ],
)
def test_broken_commands_are_found(command: str, part: str) -> None:
    """A broken command gives one problem, which names the invalid part."""
    (problem,) = pages.command_problems(f"text\n\n```bash\n{command}\n```\n")
    assert problem.startswith("line 4: ")
    assert part in problem.partition(": ")[2].partition(": ")[2]


@pytest.mark.parametrize(
    "command",
    [
        "hgpo sweep CONFIG --grid KEY=VALUE [--seeds N]",
        "hgpo train tuned_examples/alfworld_pocket.yaml learner.lr=3e-4 | tee log",
        "hgpo train --help",
        "hgpo report runs/A runs/B --output runs/C.html",
        "make test && make lint",
        "echo hgpo tarin",
        "it's no command",
    ],
)
def test_good_commands_pass(command: str) -> None:
    """Placeholders, synopses, pipes and other programs pass."""
    assert pages.command_problems(f"```\n{command}\n```") == []


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ("yaml\nalgorithm:\n  k: 2", "unknown config key algorithm.k"),
        ("yaml\nextends: a.yaml\niterations: none", "iterations"),
        ("yaml\narms: {a: {}}", "title"),
        ("yaml\na: [1", "line 2"),
        ("python\nx = (", "line 2"),
        ("python\nfrom hgpo_rllib.config import Nothing", "Nothing"),
        ("python\nimport hgpo_rllib.nothing", "hgpo_rllib.nothing"),
        ("python\nHGPOConfig().training(weight_alfa=1)", "weight_alfa"),
        ("python\nprint(1 + 1)\n```\n\n```text\n3", "prints\n2"),
    ],
)
def test_broken_blocks_are_found(block: str, part: str) -> None:
    """Unknown settings, syntax errors, unknown imports and wrong output are found."""
    text = f"```{block}\n```\n"
    (problem,) = [*pages.yaml_problems(text), *pages.python_problems(text)]
    assert part in problem


def test_good_blocks_pass() -> None:
    """Valid blocks pass, including YAML of other programs."""
    text = (
        "```yaml\nservices:\n  head: {image: x}\n```\n```python\nprint(2)\n```\n```text\n2\n```\n"
    )
    assert [*pages.yaml_problems(text), *pages.python_problems(text)] == []
