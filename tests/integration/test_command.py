"""`hgpo train` as a user runs it: followed, interrupted, resumed, to its end."""

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hgpo_rllib.config import RunConfig
from tests.integration.conftest import command_words
from tests.integration.test_live_metrics import assert_prometheus_follows, free_port
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the run and its logs are."""
    return tmp_path_factory.mktemp("command")


@pytest.fixture(scope="module")
def ray_files() -> Iterator[Path]:
    """Return where temporary files are, Ray's too. A short path: those of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="hgpo-", dir="/tmp") as path:
        yield Path(path)


def sockets() -> set[Path]:
    """Return those in the folder of temporary files, where vLLM puts its own."""
    return {file for file in Path(tempfile.gettempdir()).iterdir() if file.is_socket()}


@pytest.fixture(scope="module")
def sockets_before() -> set[Path]:
    """Return those from before the run."""
    return sockets()


@pytest.fixture(scope="module")
def command(
    run_config: RunConfig,
    overrides: list[str],
    folder: Path,
    ray_files: Path,
    sockets_before: set[Path],
) -> Iterator[Command]:
    """Start the one run of these tests, with a dashboard and a tracker. They go on with it."""
    settings = [
        "iterations=50",
        "checkpoint_interval=1",
        f"cluster.dashboard_port={free_port()}",
        "tracking.trackers=[mlflow]",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", str(ray_files))
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlflow").as_uri())
        words = [*command_words(run_config, overrides, folder), *settings]
        with Command(words, folder / "log.txt") as command:
            yield command


@pytest.fixture(scope="module")
def run(command: Command, folder: Path) -> Path:
    """Return its directory, with the metrics of an iteration."""
    return command.wait_for(folder / "*" / "metrics.jsonl").parent


def test_prometheus_can_follow_it(run: Path, ray_files: Path) -> None:
    """With a dashboard, Ray says where to scrape; there is the row that the run has written."""
    assert_prometheus_follows(run, ray_files)


def test_another_command_cannot_resume_it(command: Command, run: Path, folder: Path) -> None:
    second = Command(["--resume", str(run)], folder / "second.txt")
    assert second.process.wait(120) == 2
    assert f"is in use: process {command.process.pid} on " in second.log.read_text()


def test_interrupted_then_resumed_to_the_end(
    command: Command, run: Path, folder: Path, sockets_before: set[Path]
) -> None:
    """Ctrl-C says how to go on; going on repeats and loses no iteration, and says what changed.

    In the end there are all files of a run, its metrics in a tracker, no process, and no socket.
    """
    command.wait_for(run / "episodes" / "iteration_0002.jsonl.gz")
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(90) == 130, command.log.read_text()
    assert f"hgpo train --resume {run}" in command.log.read_text()
    assert "Traceback" not in command.log.read_text()
    command.assert_nothing_survives()

    last = len(rows(run / "metrics.jsonl")) + 1
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("iterations: 50", f"iterations: {last}"))
    resumed = Command(["--resume", str(run)], folder / "resumed.txt")
    assert resumed.process.wait(400) == 0, resumed.log.read_text()
    resumed.assert_nothing_survives()
    assert sockets() <= sockets_before
    log = resumed.log.read_text()
    assert f"changed since the run was last started: iterations 50 -> {last}\n" in log
    assert "hgpo train --resume" not in log
    check_metrics(run, last)
    check_files(run, last, folder / "mlflow")


def check_metrics(run: Path, last: int) -> None:
    """Every iteration once, each with the numbers that a sound one has."""
    metrics = rows(run / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == list(range(1, last + 1))
    for row in metrics:
        assert row["episodes"] == 16
        assert row["served_learner_logp_gap"] < 1e-4
        assert row["behaviour_logp_gap"] < 1e-3
        assert row["tokens_per_s"] > 0
        assert row["level_fraction_k0"] >= row["level_fraction_k2"] >= row["oracle_fraction"] > 0
        assert row["oracle_gap_step"] >= 0  # 0 where all members of each group end alike
        assert [sum(shares) for shares in row["level_size_shares"]] == pytest.approx([1, 1, 1])
    assert max(row["return_mean"] for row in metrics) > 0, "no episode to learn from"
    evaluations = rows(run / "evaluation.jsonl")
    assert {(row["iteration"], row["split"]) for row in evaluations} == {
        (iteration, split)
        for iteration in (0, last)
        for split in ("all", "valid_seen", "valid_unseen")
    }


def check_files(run: Path, last: int, mlflow: Path) -> None:
    """All of a run, and what MLflow keeps of it."""
    for name in ("config.yaml", "summary.json", "report.html", "checkpoint/model.safetensors"):
        assert (run / name).stat().st_size > 0
    assert list((run / "plots").glob("*.png"))
    assert list((run / "tensorboard").iterdir())
    assert len(list((run / "episodes").iterdir())) == last
    for name, steps in (
        ("success_rate", set(range(1, last + 1))),
        ("evaluation/all/success_rate", {0, last}),
    ):
        (tracked,) = mlflow.glob(f"*/*/metrics/{name}")
        assert {int(line.split()[2]) for line in tracked.read_text().splitlines()} == steps
