"""`hgpo train` as a command: exit codes and what is said on bad input."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub.constants
import pytest

from hgpo_rllib.cli.main import main
from hgpo_rllib.config import load_config
from tests.paths import ROOT

POCKET = ROOT / "tuned_examples/alfworld_pocket.yaml"


def hgpo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, in this process, which has imported what it needs."""
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    code: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        patch.chdir(folder)
        patch.setenv("HOME", str(home))
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(sys, "argv", ["hgpo", *arguments])
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def hgpo_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own: slower, and with what imports print."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hgpo_rllib.cli.main", *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(folder: Path, arguments: Sequence[str], named: Sequence[str]) -> None:
    """Exit code 2, one line that names the thing, no traceback and nothing written."""
    assert_is_refusal(hgpo(folder, *arguments), named)
    assert list(folder.iterdir()) == []


def assert_is_refusal(done: subprocess.CompletedProcess[str], named: Sequence[str]) -> None:
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("hgpo: ")
    for part in named:
        assert part in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((str(POCKET), "algorithm.gama=1", "--dry-run"), ["algorithm.gama", "available", "gamma"]),
        (("missing.yaml",), ["missing.yaml", "No such file"]),
        ((str(POCKET), "model.model_path=no-model"), ["model.model_path", "no-model"]),
        ((str(POCKET), "env.data=."), ["json_2.1.1", "is not a directory", "alfworld-download"]),
        (("--resume", "."), ["--resume", "is not a run directory"]),
        ((str(POCKET), f"cache={POCKET}"), ["cache: ", "pocket.yaml is not a writable directory"]),
        ((str(POCKET), f"output={POCKET}/runs"), ["output: ", "is not a writable directory"]),
    ],
    ids=["unknown key", "missing file", "missing model", "no games", "no run", "cache", "output"],
)
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    assert_refused(tmp_path, ("train", *arguments), named)


def test_bad_input_of_a_process(tmp_path: Path) -> None:
    """As above, and nothing that a library prints meanwhile."""
    done = hgpo_process(tmp_path, "train", str(POCKET), "model.model_path=no-model")
    assert_is_refusal(done, ["model.model_path", "no-model"])


def test_dry_run_prints_settings_that_load(tmp_path: Path) -> None:
    """All of them, as YAML, with the overrides applied; nothing else on standard output."""
    done = hgpo(tmp_path, "train", str(POCKET), "learner.lr=1e-3", "--dry-run")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "printed.yaml"
    path.write_text(done.stdout)
    assert load_config(path, []) == load_config(POCKET, ["learner.lr=1e-3"])
    assert done.stderr.startswith("Resources requested from Ray")
    assert "Traceback" not in done.stderr
