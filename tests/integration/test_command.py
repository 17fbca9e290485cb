"""`hgpo train` as a user runs it: to its end, interrupted and resumed, killed."""

import json
import signal
import time
from pathlib import Path

import pytest

from hgpo_rllib.config import RunConfig
from tests.integration.conftest import EXAMPLE
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture
def arguments(run_config: RunConfig, overrides: list[str], tmp_path: Path) -> list[str]:
    """A small run on the games and the model that are there already."""
    return [
        str(EXAMPLE),
        *overrides,
        f"output={tmp_path}",
        f"env.data={run_config.env.data}",
        f"model.model_path={run_config.model.model_path}",
    ]


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_run_to_the_end(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0, all files of a run, its metrics in a tracker, and no process left."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    command = Command([*arguments, "tracking.trackers=[mlflow]"], tmp_path / "log.txt")
    assert command.process.wait(400) == 0, command.log.read_text()
    command.assert_nothing_survives()
    (run,) = tmp_path.glob("alfworld_pocket-*")
    metrics = rows(run / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == [1, 2]
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
        for iteration in (0, 2)
        for split in ("all", "valid_seen", "valid_unseen")
    }
    for name in ("config.yaml", "summary.json", "report.html", "checkpoint/model.safetensors"):
        assert (run / name).stat().st_size > 0
    assert list((run / "plots").glob("*.png"))
    assert list((run / "tensorboard").iterdir())
    assert len(list((run / "episodes").iterdir())) == 2
    for name, count in (("success_rate", 2), ("evaluation/all/success_rate", 2)):
        (tracked,) = (tmp_path / "mlflow").glob(f"*/*/metrics/{name}")
        assert len(tracked.read_text().splitlines()) == count
    assert "hgpo train --resume" not in command.log.read_text()


def test_interrupt_resume_kill(arguments: list[str], tmp_path: Path) -> None:
    """Ctrl-C says how to go on; going on repeats and loses no iteration; SIGKILL leaves nothing.

    Meanwhile, another command cannot resume it; later, changed settings are said.
    """
    settings = [*arguments, "iterations=50", "checkpoint_interval=1"]
    command = Command(settings, tmp_path / "log.txt")
    while not (found := list(tmp_path.glob("alfworld_pocket-*"))):
        time.sleep(0.5)
        assert command.process.poll() is None, command.log.read_text()
    run = found[0]
    command.wait_for(run / "episodes" / "iteration_0002.jsonl.gz")
    second = Command(["--resume", str(run)], tmp_path / "second.txt")
    assert second.process.wait(120) == 2
    assert f"is in use: process {command.process.pid} on " in second.log.read_text()
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(90) == 130, command.log.read_text()
    assert f"hgpo train --resume {run}" in command.log.read_text()
    assert "Traceback" not in command.log.read_text()
    command.assert_nothing_survives()

    done = len(rows(run / "metrics.jsonl"))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("iterations: 50", "iterations: 60"))
    resumed = Command(["--resume", str(run)], tmp_path / "log2.txt")
    resumed.wait_for(run / "episodes" / f"iteration_{done + 2:04}.jsonl.gz")
    said = "changed since the run was last started: iterations 50 -> 60\n"
    assert said in resumed.log.read_text()
    iterations = [row["iteration"] for row in rows(run / "metrics.jsonl")]
    assert iterations == list(range(1, len(iterations) + 1))
    assert len(resumed.survivors()) > 5, "the mark finds no Ray processes: the test would be blind"
    resumed.process.kill()
    resumed.process.wait(10)
    resumed.assert_nothing_survives(180)  # Ray's own agent notices late that its parent is gone
