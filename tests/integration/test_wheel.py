"""The package as a user installs it: run files by name, from an empty folder."""

import gzip
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from env_wrappers.webshop.session import parse_action
from tests.integration.test_command import rows
from tests.paths import ROOT
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PACKAGES = ("hgpo_rllib", "env_wrappers", "tuned_examples")
SMALL = (
    "iterations=1",
    "store.products=300",
    "warm_start.games=40",
    "warm_start.optimizer_steps=150",
    "rollout.groups_per_iteration=4",
    "rollout.group_size=4",
    "learner.minibatch_size=64",
    "evaluation.episodes=4",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel, and this one's other packages."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"  # a build leaves files beside its sources
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    # Lines of a .pth file are added as they are: this checkout, installed there by a .pth file of
    # its own, is not.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    return python


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder."""
    return tmp_path


def test_it_is_what_runs(python: Path, folder: Path) -> None:
    """Otherwise the other tests would show nothing."""
    code = f"import {', '.join(PACKAGES)}; print(hgpo_rllib.__file__, env_wrappers.__file__)"
    done = subprocess.run(
        [python, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert [Path(file).is_relative_to(python.parents[1]) for file in done.stdout.split()] == [
        True
    ] * 2


@pytest.mark.parametrize("name", ["alfworld_pocket", "alfworld_pocket_ppo"])
def test_run_files_have_names(name: str, python: Path, folder: Path) -> None:
    """Also those that extend others."""
    with Command(["--dry-run", name], folder / "log.txt", python=python, folder=folder) as command:
        command.process.wait(120)
    said = (folder / "log.txt").read_text()
    assert f"name: {name}" in said


def test_from_nothing_to_a_report(python: Path, folder: Path) -> None:
    """One command makes all it needs; shoppers search, and what they do is recorded."""
    command = Command(["webshop_pocket", *SMALL], folder / "log.txt", python=python, folder=folder)
    assert command.process.wait(500) == 0, command.log.read_text()
    command.assert_nothing_survives()
    (run,) = folder.glob("runs/webshop_pocket-*")
    (row,) = rows(run / "metrics.jsonl")
    assert row["episodes"] == 16
    assert row["served_learner_logp_gap"] < 1e-4
    assert row["invalid_rate"] < 0.5, "a clone of 150 steps answers in the agents' format"
    assert {r["split"] for r in rows(run / "evaluation.jsonl")} == {"all", "dev", "test"}
    assert (run / "report.html").stat().st_size > 0
    lines = gzip.decompress((run / "episodes/iteration_0001.jsonl.gz").read_bytes()).splitlines()
    episodes = [json.loads(line) for line in lines]
    assert {episode["game"].partition("/")[0] for episode in episodes} == {"train"}
    for episode in episodes:
        first, *_ = episode["steps"]
        assert first["anchor"] == f"WebShop [SEP] Instruction: [SEP] {episode['goal']} [SEP] Search"
        assert first["prompt"].count(episode["goal"]) == 2
    first_steps = [episode["steps"][0] for episode in episodes]
    searches = [s for s in first_steps if (parse_action(s["action"]) or ("",))[0] == "search"]
    assert searches, "the first page has a search bar"
    assert not any(s["inadmissible"] for s in searches)
