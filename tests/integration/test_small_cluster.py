"""`hgpo sweep` on a cluster that is too small for a trial."""

from pathlib import Path

import pytest
import ray

from tests.processes import Command

pytestmark = pytest.mark.integration


def test_too_small_a_cluster_is_one_line(
    arguments: list[str], tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command exits with code 2 before it makes files, instead of waiting for CPUs."""
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # search the node on loopback
    cpus = int(ray.cluster_resources()["CPU"])
    settings = [
        *arguments,
        f"policy_server.replica_cpus={cpus}",
        "--grid",
        "algorithm.weight_alpha=0,1",
    ]
    command = Command(
        [*settings, "--output", str(tmp_path / "sweep")], tmp_path / "log.txt", "sweep"
    )
    assert command.process.wait(200) == 2, command.log.read_text()
    (line,) = [x for x in command.log.read_text().splitlines() if x.startswith("hgpo: ")]
    assert f"a trial needs {cpus + 1} CPU" in line
    assert f"the cluster has {cpus} CPU" in line
    assert not (tmp_path / "sweep").exists()
    command.assert_nothing_survives()
