"""`hgpo train` from an installed wheel: started in an empty folder, interrupted and resumed."""

import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_wrappers.webshop.session import parse_action
from hgpo_rllib.results import load_run
from hgpo_rllib.results.export import export_steps
from tests.integration.runs import episodes_of, rows
from tests.integration.test_live_metrics import assert_prometheus_follows
from tests.paths import ROOT
from tests.processes import Command, free_port

pytestmark = pytest.mark.integration
PACKAGES = ("hgpo_rllib", "env_wrappers", "tuned_examples")
SMALL = (
    "iterations=50",
    "env.max_steps=6",
    "store.products=300",
    "warm_start.games=40",
    "warm_start.optimizer_steps=600",
    "warm_start.batch_size=4",
    "rollout.groups_per_iteration=4",
    "rollout.group_size=4",
    "learner.minibatch_size=64",
    "evaluation.episodes=4",
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and this environment's packages."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"  # a build leaves files beside its sources
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored)
    for name in ("pyproject.toml", "requirements/base.txt", "README.md", "LICENSE"):
        (sources / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources)]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    # Python ignores .pth files in a folder that a .pth file adds. So the checkout, which is
    # installed there by a .pth file, is not importable.
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True, capture_output=True)
    return python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the empty folder in which all commands run."""
    return tmp_path_factory.mktemp("command")


@pytest.fixture(scope="module")
def temporary_files() -> Iterator[Path]:
    """Yield the folder of all temporary files, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="hgpo-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def command(python: Path, folder: Path, temporary_files: Path) -> Iterator[Command]:
    """Yield the run that the tests share, with a dashboard and a tracker."""
    settings = [
        *SMALL,
        "checkpoint_interval=1",
        f"cluster.dashboard_port={free_port()}",
        "tracking.trackers=[mlflow]",
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            patch.setenv(name, str(temporary_files))
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlflow").as_uri())
        words = ["webshop_pocket", *settings]
        with Command(words, folder / "log.txt", python=python, folder=folder) as command:
            yield command


@pytest.fixture(scope="module")
def run(command: Command, folder: Path) -> Path:
    """Return the run's directory, once it has the metrics of an iteration."""
    return command.wait_for(folder / "runs" / "webshop_pocket-*" / "metrics.jsonl").parent


def test_commands_import_the_wheel(python: Path, folder: Path) -> None:
    """The interpreter imports the wheel, not the checkout."""
    code = f"import {', '.join(PACKAGES)}; print(hgpo_rllib.__file__, env_wrappers.__file__)"
    done = subprocess.run(
        [python, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert [Path(file).is_relative_to(python.parents[1]) for file in done.stdout.split()] == [
        True
    ] * 2


def test_run_files_that_extend_others_have_names(python: Path, tmp_path: Path) -> None:
    words = ["--dry-run", "alfworld_pocket_ppo"]
    with Command(words, tmp_path / "log.txt", python=python, folder=tmp_path) as command:
        assert command.process.wait(120) == 0, command.log.read_text()
    assert "name: alfworld_pocket_ppo" in command.log.read_text()


def test_prometheus_can_follow_it(run: Path, temporary_files: Path) -> None:
    """With a dashboard, Ray writes the scrape targets, which have the run's latest metrics."""
    assert_prometheus_follows(run, temporary_files)


def test_another_command_cannot_resume_it(
    command: Command, run: Path, python: Path, folder: Path
) -> None:
    second = Command(["--resume", str(run)], folder / "second.txt", python=python, folder=folder)
    assert second.process.wait(120) == 2
    assert f"is in use: process {command.process.pid} on " in second.log.read_text()


def test_interrupted_then_resumed_to_the_end(
    command: Command, run: Path, python: Path, folder: Path, temporary_files: Path
) -> None:
    """An interrupted run prints the command to resume it, and the resumed run finishes.

    The result has each iteration once and all files; no process and no socket remains.
    """
    command.wait_for(run / "episodes" / "iteration_0002.jsonl.gz")
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(90) == 130, command.log.read_text()
    assert f"hgpo train --resume {run.relative_to(folder)}" in command.log.read_text()
    assert "Traceback" not in command.log.read_text()
    command.assert_nothing_survives()

    last = len(rows(run / "metrics.jsonl")) + 1
    config = (run / "config.yaml").read_text()
    config = re.sub("^iterations: 50$", f"iterations: {last}", config, flags=re.MULTILINE)
    (run / "config.yaml").write_text(config)
    resumed = Command(["--resume", str(run)], folder / "resumed.txt", python=python, folder=folder)
    assert resumed.process.wait(400) == 0, resumed.log.read_text()
    resumed.assert_nothing_survives()
    assert not [file for file in temporary_files.iterdir() if file.is_socket()], "vLLM's"
    log = resumed.log.read_text()
    assert f"changed since the run was last started: iterations 50 -> {last}\n" in log
    assert "hgpo train --resume" not in log
    check_metrics(run, last)
    check_episodes(run)
    check_files(run, last, folder / "mlflow")


def check_metrics(run: Path, last: int) -> None:
    """Check that each iteration and evaluation has one row with plausible values."""
    metrics = rows(run / "metrics.jsonl")
    assert [row["iteration"] for row in metrics] == list(range(1, last + 1))
    for row in metrics:
        assert row["episodes"] == 16
        assert row["served_learner_logp_gap"] < 1e-4
        assert row["behavior_logp_gap"] < 1e-3
        assert row["tokens_per_s"] > 0
        assert row["invalid_rate"] < 0.5, "a clone of 600 steps answers in the agents' format"
        assert row["level_fraction_k0"] >= row["level_fraction_k2"] >= row["oracle_fraction"] > 0
        assert row["oracle_gap_step"] >= 0  # 0 if all members of each group have equal returns
        assert [sum(shares) for shares in row["level_size_shares"]] == pytest.approx([1, 1, 1])
        assert row["grad_norm"] > 0, "no step to learn from"
    evaluations = rows(run / "evaluation.jsonl")
    assert {(row["iteration"], row["split"]) for row in evaluations} == {
        (iteration, split) for iteration in (0, last) for split in ("all", "dev", "test")
    }


def check_episodes(run: Path) -> None:
    """Check the recorded episodes, in some of which the agent searches."""
    episodes = episodes_of(run, 1)
    assert {episode["game"].partition("/")[0] for episode in episodes} == {"train"}
    for episode in episodes:
        first, *_ = episode["steps"]
        assert first["anchor"] == f"WebShop [SEP] Instruction: [SEP] {episode['goal']} [SEP] Search"
        assert first["prompt"].count(episode["goal"]) == 2
    first_steps = [episode["steps"][0] for episode in episodes]
    searches = [s for s in first_steps if (parse_action(s["action"]) or ("",))[0] == "search"]
    assert searches, "the first page has a search bar"
    assert not any(s["inadmissible"] for s in searches)
    recorded = load_run(run)
    assert recorded.steps["weight_version"].str.contains(":").all()
    count = export_steps(run, run.parent / "steps.parquet", lost=True)
    assert count == len(recorded.steps) == recorded.episodes["episode_length"].sum()


def check_files(run: Path, last: int, mlflow: Path) -> None:
    """Check the run's files, and the metrics in MLflow."""
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
