"""Env runners on two Ray nodes: losing a runner, a replica, both, and a whole node.

The engine computes one request at a time. So responses and weights do not depend on the other
episodes, and a run can be compared with an undisturbed one.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import arguments, overrides, run_config
from tests.integration.runs import episodes_of, run_of
from tests.processes import Command, wait_until
from tests.slow.test_two_nodes import HEAD, REPLICA, ROLLOUT, SECOND_ROLLOUT, Node, Run, start_node

__all__ = ["arguments", "overrides", "run_config", "start_node"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
RUNNER = "HGPOEnvRunner"
ONE_BY_ONE = ("policy_server.max_num_seqs=1", "policy_server.enable_prefix_caching=false")


def episodes(folder: Path, iteration: int) -> list[dict[str, Any]]:
    """Return the recorded episodes, without times and the run's name in weight versions."""
    found = episodes_of(run_of(folder), iteration)
    for step in (step for episode in found for step in episode["steps"]):
        del step["request_s"], step["env_s"]
        step["weight_version"] = step["weight_version"].partition(":")[2]
    return found


def train(arguments: list[str], folder: Path, *settings: str) -> None:
    """Train to the end without a cluster."""
    folder.mkdir()
    command = Command([*arguments, *settings, f"output={folder}"], folder / "log.txt")
    assert command.process.wait(900) == 0, command.log.read_text()


def test_the_number_of_env_runners_changes_nothing(arguments: list[str], tmp_path: Path) -> None:
    """Two iterations have identical log-probabilities and advantages for 0, 1 and 3 runners."""
    found = {}
    for count in (0, 1, 3):
        folder = tmp_path / f"{count}"
        settings = [f"cluster.num_env_runners={count}", "cluster.env_runner_cpus=0.1"]
        train(arguments, folder, *ONE_BY_ONE, *settings)
        found[count] = [episodes(folder, iteration) for iteration in (1, 2)]
    assert len(found[0][1]) == 16
    assert found[1] == found[0]
    assert found[3] == found[0]


def test_nothing_is_lost_with_an_env_runner_a_replica_or_a_node(
    arguments: list[str],
    tmp_path: Path,
    start_node: Callable[[str, list[str]], Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every iteration has the same episodes as an undisturbed run without env runners."""
    head = start_node(HEAD, ["--num-cpus=1"])
    rollout = start_node(ROLLOUT, ["--num-cpus=2", '--resources={"rollout": 1}'])
    together = tmp_path / "together"
    together.mkdir()
    settings = ["cluster.num_env_runners=2", "policy_server.replica_resources={rollout: 1}"]
    settings += ["policy_server.max_logp_gap=1e-4", "iterations=100", f"output={together}"]
    settings += ONE_BY_ONE
    run = Run([*arguments, *settings], together)
    run.wait_for_iterations(2)
    assert len(head.processes(RUNNER)) == len(rollout.processes(RUNNER)) == 1

    for names in ([RUNNER], [REPLICA], [RUNNER, REPLICA]):
        victims = [pid for name in names for pid in rollout.processes(name)]
        assert len(victims) == len(names)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        run.wait_for_iterations(len(run.metrics()) + 2)
        for name in names:
            wait_until(lambda name=name: rollout.processes(name), 120, run.log)

    rollout.kill()
    run.wait_for_line("no replica is running")
    second = start_node(SECOND_ROLLOUT, ["--num-cpus=2", '--resources={"rollout": 1}'])
    run.wait_for_iterations(len(run.metrics()) + 2)
    wait_until(lambda: second.processes(RUNNER), 120, run.log)
    run.wait_for_iterations(len(run.metrics()) + 1)

    metrics = run.stop()
    for node in (head, second):
        wait_until(lambda node=node: not node.processes(RUNNER), 60, run.log)
    assert "lost an env runner" in run.log()

    alone = tmp_path / "alone"
    monkeypatch.delenv("RAY_ADDRESS")
    train(arguments, alone, *ONE_BY_ONE, f"iterations={len(metrics)}")
    for row in metrics:
        assert episodes(together, row["iteration"]) == episodes(alone, row["iteration"])
