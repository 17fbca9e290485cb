"""`hgpo doctor` on a machine where everything works."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from hgpo_rllib import doctor
from hgpo_rllib.config import RunConfig
from hgpo_rllib.reporting.console import TrainingConsole
from tests.integration.conftest import EXAMPLE

pytestmark = pytest.mark.integration
SHORT_RUN = ["engine and learner", "rollout", "weight update", "learner step", "learner memory"]


@pytest.mark.usefixtures("shared_server")
def test_a_short_run_with_all_parts(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ray_cluster", lambda _: nullcontext())
    checks = list(doctor.examine(run_config, TrainingConsole()))
    assert not [check for check in checks if check.problem]
    found = {check.name: check.found for check in checks}
    assert list(found)[-5:] == SHORT_RUN
    assert "of the device's matrix products" in found["learner step"]


@pytest.mark.slow  # starts a policy server; the test above makes the same checks
def test_the_command(run_config: RunConfig, tmp_path: Path) -> None:
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
    assert "problems" not in report
    assert {row["state"] for row in report["checks"]} == {"ok"}
    assert [row["check"] for row in report["checks"]][-5:] == SHORT_RUN
