"""The learner on one Ray node and the policy server on another, which is lost in an iteration.

Both nodes run on one machine, started by `ray start` (docs/cluster.md) on different loopback
addresses. Ray copies objects between them as it does between machines.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import arguments, overrides, run_config
from tests.integration.runs import episodes_of, rows, run_of
from tests.processes import Command, Processes, command_line, free_port, wait_until

__all__ = ["arguments", "overrides", "run_config"]  # fixtures
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
HEAD, ROLLOUT, SECOND_ROLLOUT = "127.0.0.2", "127.0.0.3", "127.0.0.4"
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
REPLICA, ENGINE = "ServeReplica:", "EngineCore"


class Node:
    """A Ray node, whose processes, including actors, are found by a mark in their environment."""

    def __init__(self, ip: str, log: Path, *options: str) -> None:
        self.tree = Processes()
        self.log = log
        self.process = subprocess.Popen(
            [*RAY, f"--node-ip-address={ip}", "--object-store-memory=100000000", *options],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | self.tree.environment,
            start_new_session=True,
        )
        wait_until(lambda: "Ray runtime started" in log.read_text(), 300, log.read_text)

    def processes(self, name: str = "") -> list[int]:
        """Return the ids of running processes whose command line contains `name`."""
        return [process.pid for process in self.tree.alive() if name in command_line(process)]

    def send(self, number: int, name: str = "") -> None:
        """Send a signal to each matching process."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill all processes, as a power failure would."""
        while self.processes():
            self.send(signal.SIGKILL)
            time.sleep(0.1)
        self.process.wait()


@pytest.fixture
def start_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, list[str]], Node]]:
    """Yield a function that starts nodes, the head first; kill all nodes at the end."""
    nodes: list[Node] = []
    address = f"{HEAD}:{free_port(HEAD)}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with tempfile.TemporaryDirectory(prefix="hgpo-", dir="/tmp") as ray_files:  # short: sockets

        def start(ip: str, options: list[str]) -> Node:
            if nodes:
                place = [f"--address={address}"]
            else:
                port, client = address.split(":")[1], free_port(HEAD)
                place = ["--head", f"--port={port}", f"--ray-client-server-port={client}"]
                place += [f"--temp-dir={ray_files}", "--include-dashboard=false"]
            nodes.append(Node(ip, tmp_path / f"node{len(nodes)}.txt", *place, *options))
            return nodes[-1]

        yield start
        for node in reversed(nodes):
            node.kill()


class Run:
    """A run of `hgpo train` in the cluster, and its results."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.command = Command(arguments, folder / "log.txt")
        self.folder = folder

    def log(self) -> str:
        return self.command.log.read_text()

    def metrics(self) -> list[dict]:
        files = list(self.folder.glob("alfworld_pocket-*/metrics.jsonl"))
        return rows(files[0]) if files else []

    def wait_for_iterations(self, count: int) -> None:
        self.command.wait_until(lambda: len(self.metrics()) >= count, 600)

    def wait_for_line(self, text: str) -> None:
        self.command.wait_until(lambda: text in self.log(), 300)

    def stop(self) -> list[dict]:
        """Interrupt the command; return its metrics, none of which is missing or too far off."""
        self.command.process.send_signal(signal.SIGINT)
        assert self.command.process.wait(90) == 130, self.log()
        metrics = self.metrics()
        assert [row["iteration"] for row in metrics] == list(range(1, len(metrics) + 1))
        for row in metrics:
            assert row["episodes"] == 16
            assert row["served_learner_logp_gap"] < 1e-4
            assert row["behavior_logp_gap"] < 1e-3  # starting weights would give 0.1 or more
        return metrics

    def weight_versions(self, iteration: int) -> set[str]:
        """Return the weight versions that sampled an iteration's responses."""
        episodes = episodes_of(run_of(self.folder), iteration)
        return {step["weight_version"] for episode in episodes for step in episode["steps"]}


def test_training_survives_the_loss_of_the_rollout_node_of_replica_and_of_engine(
    arguments: list[str],
    tmp_path: Path,
    start_node: Callable[[str, list[str]], Node],
) -> None:
    """Prompts of a lost replica are retried under the learner's current weights."""
    head = start_node(HEAD, ["--num-cpus=1"])
    rollout = start_node(ROLLOUT, ["--num-cpus=1", '--resources={"rollout": 1}'])
    placed = ["policy_server.replica_resources={rollout: 1}", "policy_server.max_logp_gap=1e-4"]
    run = Run([*arguments, "iterations=50", *placed], tmp_path)
    run.wait_for_iterations(2)
    assert rollout.processes(REPLICA)
    assert not head.processes(REPLICA)

    # Freeze first, so that the current iteration gets to wait for responses.
    rollout.send(signal.SIGSTOP)
    time.sleep(6)
    done = len(run.metrics())
    time.sleep(2)
    assert len(run.metrics()) == done, "nothing froze: the test would be blind"
    rollout.kill()
    run.wait_for_line("no replica is running")
    assert len(run.metrics()) == done

    second = start_node(SECOND_ROLLOUT, ["--num-cpus=1", '--resources={"rollout": 1}'])
    run.wait_for_iterations(done + 2)

    for name in (REPLICA, ENGINE):
        (victim,) = second.processes(name)
        (before,) = second.processes(REPLICA)
        done = len(run.metrics())
        os.kill(victim, signal.SIGKILL)
        run.wait_for_iterations(done + 3)
        wait_until(lambda pid=before: pid not in second.processes(REPLICA), 60, run.log)

    metrics = run.stop()
    wait_until(lambda: not second.processes(REPLICA), 60, run.log)
    versions = [run.weight_versions(row["iteration"]) for row in metrics]
    assert [len(version) for version in versions] == [1] * len(metrics)
    assert len(set.union(*versions)) == len(metrics)
