"""`hgpo doctor` on a machine where everything works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo_rllib.config import RunConfig
from tests.integration.conftest import EXAMPLE

pytestmark = pytest.mark.integration


def test_a_short_run_with_all_parts(run_config: RunConfig, tmp_path: Path) -> None:
    files = [f"env.data={run_config.env.data}", f"model.model_path={run_config.model.model_path}"]
    command = [sys.executable, "-m", "hgpo_rllib.cli.main", "doctor", str(EXAMPLE), *files]
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [*command, f"output={tmp_path}", "--json"],
        env=os.environ | {"HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("home/ray_results/*"))
    report = json.loads(done.stdout)
    found = {row["check"]: row["found"] for row in report["checks"]}
    assert "problems" not in report
    assert {row["state"] for row in report["checks"]} == {"ok"}
    assert list(found)[-5:] == [
        "engine and learner",
        "rollout",
        "weight update",
        "learner step",
        "learner memory",
    ]
    assert "of the device's matrix products" in found["learner step"]
