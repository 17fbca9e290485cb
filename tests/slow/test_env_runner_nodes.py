"""Env runners on two Ray nodes: a runner, a replica, both and a node are lost in an iteration."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import arguments, overrides, run_config
from tests.integration.test_command import rows
from tests.processes import Command
from tests.slow.test_two_nodes import (
    HEAD,
    REPLICA,
    ROLLOUT,
    SECOND_ROLLOUT,
    Node,
    Run,
    start_node,
    wait_until,
)

__all__ = ["arguments", "overrides", "run_config", "start_node"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
RUNNER = "HGPOEnvRunner"


def episodes(folder: Path, iteration: int) -> list[dict[str, Any]]:
    (run,) = folder.glob("alfworld_pocket-*")
    unpacked = folder / f"{iteration}.jsonl"
    with unpacked.open("wb") as file:
        packed = run / "episodes" / f"iteration_{iteration:04d}.jsonl.gz"
        subprocess.run(["gzip", "-dc", packed], stdout=file, check=True)
    return rows(unpacked)


def played(folder: Path, iteration: int) -> list[tuple[str, int, list[list[int]]]]:
    """Group, member and responses of each episode."""
    return [
        (row["group"], row["member"], [step["response_ids"] for step in row["steps"]])
        for row in episodes(folder, iteration)
    ]


def test_nothing_is_lost_with_an_env_runner_a_replica_or_a_node(
    arguments: list[str],
    tmp_path: Path,
    start_node: Callable[[str, list[str]], Node],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every iteration has all its episodes, and the first has those of a run without runners."""
    alone = tmp_path / "alone"
    with monkeypatch.context() as without_cluster:
        without_cluster.delenv("RAY_ADDRESS")
        alone.mkdir()
        command = Command([*arguments, f"output={alone}", "iterations=1"], alone / "log.txt")
        assert command.process.wait(600) == 0, command.log.read_text()

    head = start_node(HEAD, ["--num-cpus=1"])
    rollout = start_node(ROLLOUT, ["--num-cpus=2", '--resources={"rollout": 1}'])
    together = tmp_path / "together"
    together.mkdir()
    settings = ["cluster.num_env_runners=2", "policy_server.replica_resources={rollout: 1}"]
    settings += ["policy_server.max_logp_gap=1e-4", "iterations=100", f"output={together}"]
    run = Run([*arguments, *settings], together)
    run.wait_for_iterations(2)
    assert len(head.processes(RUNNER)) == len(rollout.processes(RUNNER)) == 1
    assert played(together, 1) == played(alone, 1)

    for names in ([RUNNER], [REPLICA], [RUNNER, REPLICA]):
        victims = [pid for name in names for pid in rollout.processes(name)]
        assert len(victims) == len(names)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        run.wait_for_iterations(len(run.metrics()) + 2)
        for name in names:
            wait_until(lambda name=name: rollout.processes(name), 120, run.log)

    rollout.kill()
    run.wait_for_line("no replica runs")
    second = start_node(SECOND_ROLLOUT, ["--num-cpus=2", '--resources={"rollout": 1}'])
    run.wait_for_iterations(len(run.metrics()) + 2)
    wait_until(lambda: second.processes(RUNNER), 120, run.log)
    run.wait_for_iterations(len(run.metrics()) + 1)

    run.command.process.send_signal(signal.SIGINT)
    assert run.command.process.wait(90) == 130, run.log()
    for node in (head, second):
        wait_until(lambda node=node: not node.processes(RUNNER), 60, run.log)
    metrics = run.metrics()
    assert [row["iteration"] for row in metrics] == list(range(1, len(metrics) + 1))
    for row in metrics:
        assert row["episodes"] == 16
        assert row["served_learner_logp_gap"] < 1e-4
        assert row["behaviour_logp_gap"] < 1e-3
        groups = [group for group, _, _ in played(together, row["iteration"])]
        first = 4 * (row["iteration"] - 1)
        assert sorted(set(groups)) == sorted(f"0/train/{first + n}" for n in range(4))
    assert "lost an env runner" in run.log()
