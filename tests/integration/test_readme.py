"""The Python of the README does what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from hgpo_rllib.config import RunConfig
from hgpo_rllib.models import load_model
from tests.paths import ROOT
from tests.processes import Processes

pytestmark = pytest.mark.integration
README = ROOT / "README.md"


def test_the_snippet(run_config: RunConfig, cluster: None, tmp_path: Path) -> None:
    """With the paths of a small run, two groups, and one iteration instead of five."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    for old, new in {
        "/…/alfworld-games-…": run_config.env.data,
        "/…/pocket-model-…": run_config.model.model_path,
        "groups_per_iteration=12": "groups_per_iteration=2",
        "range(5)": "range(1)",
    }.items():
        assert code.count(old) == 1, old
        code = code.replace(old, str(new))
    processes = Processes()
    here = {
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # look for the node on loopback, where it is
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | processes.environment | here,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Ray prints the log lines of its workers between those of the program.
    (printed,) = re.findall(r"^(\S+) (\S+)$", done.stdout, flags=re.MULTILINE)
    success, gap = map(float, printed)
    assert 0 <= success <= 1
    assert gap < 1e-4
    assert load_model(str(tmp_path / "policy")).num_parameters() > 0
    processes.assert_none()
