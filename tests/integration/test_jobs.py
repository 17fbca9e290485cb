"""`ray job submit -- hgpo train …` on a head node: followed to its end, stopped, killed."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hgpo_rllib.run.cluster import LOOPBACK
from tests.integration.test_command import rows
from tests.integration.test_live_metrics import free_port
from tests.paths import ROOT
from tests.processes import Processes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
BIN = Path(sys.executable).parent
RUN_FILE = "tuned_examples/alfworld_pocket.yaml"
"""Of the upload: a job runs in its folder."""
OURS = re.compile(r"hgpo train|ray::(ServeReplica|OwnerLiveness|JobSupervisor)|EngineCore")
"""Command lines of what a job starts."""


class Head:
    """A head node with ports, files and processes of its own."""

    def __init__(self, files: Path) -> None:
        self.processes = Processes()
        dashboard = free_port()
        self.address = f"http://{LOOPBACK}:{dashboard}"
        self.log = files / "head.txt"
        self.environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # stay on the loopback address
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(files / "token"),
            **self.processes.environment,
        }
        (files / "token").write_text(secrets.token_hex(32))
        command = [
            "ray",
            "start",
            "--head",
            "--block",
            "--num-cpus=4",  # for two jobs at a time, whatever the machine has
            f"--node-ip-address={LOOPBACK}",
            f"--port={free_port()}",
            f"--dashboard-port={dashboard}",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--ray-client-server-port={free_port()}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--temp-dir={files / 'ray'}",
            "--disable-usage-stats",
        ]
        self.process = subprocess.Popen(
            command,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    def run(self, *words: str) -> str:
        """What a command of Ray's prints."""
        done = self.attempt(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same, which may fail."""
        return subprocess.run(
            self.command(*words), env=self.environment, cwd=ROOT, capture_output=True, text=True
        )

    def command(self, *words: str) -> list[str]:
        """`ray job …` or `serve …` of this cluster."""
        separator = words.index("--") if "--" in words else len(words)
        return [*words[:separator], f"--address={self.address}", *words[separator:]]

    def applications(self) -> dict[str, dict]:
        """Serve's applications by name."""
        return yaml.safe_load(self.attempt("serve", "status").stdout)["applications"]

    def ours(self) -> list[str]:
        """Processes of the cluster that are our jobs', not Ray's or Serve's own."""
        return [line for line in self.processes.command_lines() if OURS.search(line)]

    def stop(self) -> None:
        """End the node as Ctrl-C of `ray start --block` does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        wait_for(lambda: not self.processes.command_lines(), 60)


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """The node; its files have a short path, for the sake of sockets."""
    files = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    node = Head(files)
    try:
        wait_for(lambda: node.attempt("ray", "job", "list").returncode == 0, 120)
        yield node
    finally:
        node.stop()
        shutil.rmtree(files)


def test_a_job_is_followed_to_its_end(head: Head, arguments: list[str], tmp_path: Path) -> None:
    """The command prints the job's lines as they come; results are where they should be."""
    log = tmp_path / "log.txt"
    train = ["hgpo", "train", RUN_FILE, *arguments[1:], "iterations=1"]
    follow = subprocess.Popen(
        head.command("ray", "job", "submit", "--working-dir", str(ROOT), "--", *train),
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        env=head.environment,
    )
    wait_for(lambda: "starting Ray" in log.read_text(), 300)
    assert follow.poll() is None, "its lines do not stream"
    assert follow.wait(300) == 0, log.read_text()
    assert "' succeeded" in log.read_text()
    (run,) = tmp_path.glob("alfworld_pocket-*")
    assert f"run directory: {run}" in log.read_text()
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1]
    assert (run / "report.html").is_file()
    assert head.applications() == {}
    wait_for(lambda: not head.ours(), 30)


def test_stopped_jobs_leave_nothing(head: Head, arguments: list[str], tmp_path: Path) -> None:
    """One has time to end by itself, another is killed; neither disturbs the other."""
    jobs = {"gentle": 60, "killed": 0}
    for name, seconds in jobs.items():
        settings = [f"output={tmp_path / name}", "iterations=500"]
        environment = f'{{"env_vars": {{"RAY_JOB_STOP_WAIT_TIME_S": "{seconds}"}}}}'
        options = ["--no-wait", "--submission-id", name, "--runtime-env-json", environment]
        submit = ["ray", "job", "submit", *options, "--working-dir", str(ROOT)]
        head.run(*submit, "--", "hgpo", "train", RUN_FILE, *arguments[1:], *settings)
    for name in jobs:
        wait_for(lambda name=name: list((tmp_path / name).glob("*/metrics.jsonl")), 300)
    assert len(head.applications()) == 2
    assert sum("ServeReplica" in line for line in head.ours()) == 2

    head.run("ray", "job", "stop", "gentle")
    assert "continue with: hgpo train --resume" in head.run("ray", "job", "logs", "gentle")
    (left,) = head.applications().values()
    assert left["status"] == "RUNNING"
    (run,) = (tmp_path / "killed").iterdir()
    before = len(rows(run / "metrics.jsonl"))
    wait_for(lambda: len(rows(run / "metrics.jsonl")) > before, 120)

    head.run("ray", "job", "stop", "killed")
    assert "continue with" not in head.run("ray", "job", "logs", "killed")
    wait_for(lambda: not head.applications(), 60)
    wait_for(lambda: not head.ours(), 30)
    for name in jobs:
        assert f"Job '{name}' was stopped" in head.run("ray", "job", "status", name)
