"""`ray job submit -- hgpo train …` on a head node: jobs that finish, are stopped or killed."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.run.cluster import LOOPBACK
from tests.integration.runs import rows
from tests.paths import ROOT
from tests.processes import Processes, free_port, wait_until

pytestmark = pytest.mark.integration
BIN = Path(sys.executable).parent
RUN_FILE = "tuned_examples/alfworld_pocket.yaml"
"""Of the upload: a job runs in its folder."""
OURS = re.compile(r"hgpo train|ray::(ServeReplica|OwnerLiveness|JobSupervisor)|EngineCore")
"""Command lines of what a job starts."""


class Head:
    """A head node with its own ports, files and processes."""

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
        self._token = secrets.token_hex(32)
        (files / "token").write_text(self._token)
        command = [
            "ray",
            "start",
            "--head",
            "--block",
            "--num-cpus=4",  # enough for two jobs on any machine
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

    def run(self, *words: str) -> None:
        """Run a command of Ray and check its exit code."""
        done = subprocess.run(
            words, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def submit(self, job: str, seconds: int, *options: str, train: list[str]) -> list[str]:
        """Return the command that submits a job, which gets `seconds` to end when it is stopped."""
        environment = f'{{"env_vars": {{"RAY_JOB_STOP_WAIT_TIME_S": "{seconds}"}}}}'
        about = ["--submission-id", job, "--runtime-env-json", environment, *options]
        submit = ["ray", "job", "submit", *about, "--working-dir", str(ROOT)]
        return self.command(*submit, "--", "hgpo", "train", RUN_FILE, *train)

    def command(self, *words: str) -> list[str]:
        """Return a `ray job …` command with the address of this cluster."""
        separator = words.index("--") if "--" in words else len(words)
        return [*words[:separator], f"--address={self.address}", *words[separator:]]

    def ask(self, path: str) -> Any:
        """Return a response of the node's REST API, which is faster than `ray job …`."""
        headers = {"Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(f"{self.address}/api/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        """Return whether jobs can be submitted."""
        with contextlib.suppress(OSError):
            return self.ask("jobs/") == []
        return False

    def status(self, job: str) -> str:
        """Return a job's status."""
        return str(self.ask(f"jobs/{job}")["status"])

    def applications(self) -> dict[str, dict]:
        """Return Serve's applications by name."""
        return self.ask("serve/applications/")["applications"]

    def ours(self) -> list[str]:
        """Return the command lines of processes that jobs started, without Ray's or Serve's."""
        return [line for line in self.processes.command_lines() if OURS.search(line)]

    def kill(self) -> None:
        """Kill the node, as a regular shutdown takes half a minute."""
        self.processes.kill()
        self.process.wait()
        self.processes.assert_none()


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Yield the node, with files whose paths are short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as files:
        node = Head(Path(files))
        try:
            wait_until(node.is_up, 120, node.log.read_text)
            yield node
        finally:
            node.kill()


@contextlib.contextmanager
def following(head: Head, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `ray job submit`, which must print the job's output as it arrives."""
    with log.open("w") as lines:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=lines, stderr=subprocess.STDOUT, env=head.environment
        )
    try:
        wait_until(lambda: "starting Ray" in log.read_text(), 300)
        assert process.poll() is None, "its lines do not stream"
        yield process
    finally:
        process.kill()
        process.wait()


def endless(arguments: list[str], output: Path) -> list[str]:
    """Return the arguments of a run that goes on until it is stopped."""
    settings = ["rollout.groups_per_iteration=1", "rollout.group_size=2"]
    settings += ["evaluation.splits=[valid_seen]", "evaluation.episodes=1"]
    return [*arguments[1:], *settings, f"output={output}", "iterations=500"]


def test_a_killed_job_leaves_nothing(head: Head, arguments: list[str], tmp_path: Path) -> None:
    """A job that is stopped without time to end leaves no engine and no Serve application."""
    head.run(*head.submit("alone", 0, "--no-wait", train=endless(arguments, tmp_path)))
    wait_until(
        lambda: list(tmp_path.glob("*/metrics.jsonl")),
        300,
        lambda: head.ask("jobs/alone/logs")["logs"],
    )
    assert len(head.applications()) == 1
    assert sum("ServeReplica" in line for line in head.ours()) == 1
    head.run(*head.command("ray", "job", "stop", "alone"))
    assert "continue with" not in head.ask("jobs/alone/logs")["logs"]
    wait_until(lambda: not head.applications(), 60)
    wait_until(lambda: not head.ours(), 30)
    assert head.status("alone") == "STOPPED"


@pytest.mark.slow  # takes minutes
def test_stopped_jobs_leave_nothing(head: Head, arguments: list[str], tmp_path: Path) -> None:
    """Two jobs, one stopped with time to end and one killed, do not affect each other.

    The first job's output is streamed, and results are in the output folders.
    """

    def train(name: str) -> list[str]:
        return endless(arguments, tmp_path / name)

    log = tmp_path / "log.txt"
    head.run(*head.submit("killed", 0, "--no-wait", train=train("killed")))
    submit = head.submit("gentle", 60, train=train("gentle"))
    with following(head, submit, log) as follow:
        for name in ("gentle", "killed"):
            folder = tmp_path / name
            wait_until(lambda f=folder: follow.poll() or list(f.glob("*/metrics.jsonl")), 300)
            assert follow.poll() is None, log.read_text()
        assert len(head.applications()) == 2
        assert sum("ServeReplica" in line for line in head.ours()) == 2
        (run,) = (tmp_path / "gentle").iterdir()
        assert f"run directory: {run}" in log.read_text()

        head.run(*head.command("ray", "job", "stop", "gentle"))
        follow.wait(60)
        assert "continue with: hgpo train --resume" in log.read_text()
    (left,) = head.applications().values()
    assert left["status"] == "RUNNING"
    (run,) = (tmp_path / "killed").iterdir()
    before = len(rows(run / "metrics.jsonl"))
    wait_until(lambda: len(rows(run / "metrics.jsonl")) > before, 120)

    head.run(*head.command("ray", "job", "stop", "killed"))
    assert "continue with" not in head.ask("jobs/killed/logs")["logs"]
    wait_until(lambda: not head.applications(), 60)
    wait_until(lambda: not head.ours(), 30)
    for name in ("gentle", "killed"):
        assert head.status(name) == "STOPPED"


@pytest.mark.slow  # takes a minute
def test_a_job_is_followed_to_its_end(head: Head, arguments: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    submit = head.submit("whole", 60, train=[*arguments[1:], "iterations=1"])
    with following(head, submit, log) as follow:
        assert follow.wait(300) == 0, log.read_text()
    assert "' succeeded" in log.read_text()
    (run,) = tmp_path.glob("alfworld_pocket-*")
    assert f"run directory: {run}" in log.read_text()
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1]
    assert (run / "report.html").is_file()
    assert head.applications() == {}
    wait_until(lambda: not head.ours(), 30)
