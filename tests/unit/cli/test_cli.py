"""`hgpo train` as a command: exit codes and what is said on bad input."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hgpo_rllib.config import load_config
from tests.paths import ROOT

POCKET = ROOT / "tuned_examples/alfworld_pocket.yaml"


def hgpo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`; libraries keep their own files beside it."""
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hgpo_rllib.cli.main", *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(folder: Path, arguments: Sequence[str], named: Sequence[str]) -> None:
    """Exit code 2, one line that names the thing, no traceback and nothing written."""
    done = hgpo(folder, *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("hgpo: ")
    for part in named:
        assert part in line
    assert done.stdout == ""
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((str(POCKET), "algorithm.gama=1", "--dry-run"), ["algorithm.gama", "known here", "gamma"]),
        (("missing.yaml",), ["missing.yaml", "No such file"]),
        ((str(POCKET), "model.model_path=no-model"), ["model.model_path", "no-model"]),
        ((str(POCKET), "env.data=."), ["json_2.1.1", "is not a directory", "alfworld-download"]),
        (("--resume", "."), ["--resume", "is no run directory"]),
    ],
    ids=["unknown key", "missing file", "missing model", "no games", "no run"],
)
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    assert_refused(tmp_path, ("train", *arguments), named)


def test_dry_run_prints_settings_that_load(tmp_path: Path) -> None:
    """All of them, as YAML, with the overrides applied; nothing else on standard output."""
    done = hgpo(tmp_path, "train", str(POCKET), "learner.lr=1e-3", "--dry-run")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "printed.yaml"
    path.write_text(done.stdout)
    assert load_config(path, []) == load_config(POCKET, ["learner.lr=1e-3"])
    assert done.stderr.startswith("Resources requested from Ray")
    assert "Traceback" not in done.stderr
