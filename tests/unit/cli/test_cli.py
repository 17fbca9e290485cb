"""`hgpo train` as a command: exit codes and errors for bad input."""

from pathlib import Path

import pytest
import yaml

from hgpo_rllib.config import RunConfig, load_config
from tests.unit.cli.command import POCKET, assert_is_refusal, assert_refused, hgpo_process, run_hgpo


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((str(POCKET), "algorithm.gama=1", "--dry-run"), ["algorithm.gama", "available", "gamma"]),
        (("missing.yaml",), ["missing.yaml", "No such file"]),
        (("x" * 300,), ["xxx", "File name too long"]),
        ((str(POCKET), "model.model_path=no-model"), ["model.model_path", "no-model"]),
        ((str(POCKET), "env.data=."), ["json_2.1.1", "is not a directory", "alfworld-download"]),
        (("--resume", "."), ["--resume", "is not a run directory"]),
        ((str(POCKET), f"cache={POCKET}"), ["cache: ", "pocket.yaml is not a writable directory"]),
        ((str(POCKET), f"output={POCKET}/runs"), ["output: ", "is not a writable directory"]),
    ],
    ids=[
        "key",
        "missing file",
        "long name",
        "missing model",
        "no games",
        "no run",
        "cache",
        "output",
    ],
)
def test_bad_input(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    assert_refused(tmp_path, ("train", *arguments), named)


def test_bad_input_of_a_process(tmp_path: Path) -> None:
    """In a separate process, too, the error is one line and libraries print nothing."""
    done = hgpo_process(tmp_path, "train", str(POCKET), "model.model_path=no-model")
    assert_is_refusal(done, ["model.model_path", "no-model"])


def test_dry_run_prints_settings_that_load(tmp_path: Path) -> None:
    """Standard output has all settings as YAML with the overrides, and nothing else."""
    done = run_hgpo(tmp_path, "train", str(POCKET), "learner.lr=1e-3", "--dry-run")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "printed.yaml"
    path.write_text(done.stdout)
    assert yaml.safe_load(done.stdout).keys() == RunConfig.model_fields.keys()
    assert load_config(path, []) == load_config(POCKET, ["learner.lr=1e-3"])
    assert done.stderr.startswith("Resources requested from Ray")
    assert "Traceback" not in done.stderr
