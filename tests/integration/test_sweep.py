"""`hgpo sweep` as a user runs it: interrupted, resumed, and with trials that fail."""

import signal
from pathlib import Path

import pandas as pd
import pytest

from hgpo_rllib.run.directory import RunDirectory
from tests.integration.runs import ONE_AT_A_TIME, rows
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
LIMIT = "env.max_steps"
ALPHA = "algorithm.weight_alpha"


def results(folder: Path) -> list[dict]:
    return pd.read_csv(folder / "results.csv").to_dict("records")


def sweep(
    arguments: list[str], tmp_path: Path, limits: tuple[int, ...] = (20, 1)
) -> tuple[Command, Path, Path]:
    """Start a sweep, one trial at a time; return it with the directories of two trials.

    The second trial has one step per game, so that it wins nothing and is stopped early.
    """
    folder = tmp_path / "sweep"
    settings = ["iterations=2", "evaluation.interval=1", "evaluation.episodes=12", ONE_AT_A_TIME]
    settings.append("evaluation.splits=[train]")  # the small model wins half of its games
    options = [
        "--grid",
        f"{LIMIT}={','.join(map(str, limits))}",
        f"{ALPHA}=1",
        "--scheduler=asha",
        f"--output={folder}",
    ]
    command = Command([*arguments, *settings, *options], tmp_path / "log.txt", "sweep")
    trials = (f"0{n}-max_steps={limit}-weight_alpha=1-seed=0" for n, limit in ((1, 20), (2, 1)))
    first, second = (folder / name for name in trials)
    return command, first, second


def assert_complete(command: Command, second: Path) -> None:
    """Check that the sweep finishes with all results, and that the second trial stops early."""
    assert command.process.wait(400) == 0, command.log.read_text()
    command.assert_nothing_survives()
    assert "stopped after 1 iterations" in command.log.read_text()
    assert [row["iteration"] for row in rows(second / "metrics.jsonl")] == [1]
    assert (second / "report.html").is_file()
    folder = second.parent
    good, bad = results(folder)
    assert (good["iterations"], bad["iterations"]) == (2, 1)
    assert good["after"] > bad["after"] == 0
    assert_files(folder)


def assert_files(folder: Path) -> None:
    assert list(folder.glob("heat_map-*.png"))
    assert (folder / "report.html").is_file()
    assert not (folder / "tune").exists()


def test_one_trial(arguments: list[str], tmp_path: Path) -> None:
    """A sweep of one trial has all results."""
    command, trial, _ = sweep(arguments, tmp_path, limits=(20,))
    assert command.process.wait(400) == 0, command.log.read_text()
    command.assert_nothing_survives()
    assert ": 1 at a time" in command.log.read_text()
    assert RunDirectory(trial).is_finished()
    (found,) = results(trial.parent)
    assert (found[LIMIT], found["iterations"]) == (20, 2)
    assert found["after"] > 0
    assert_files(trial.parent)


@pytest.mark.slow  # each trial takes a minute
def test_two_trials(arguments: list[str], tmp_path: Path) -> None:
    command, first, second = sweep(arguments, tmp_path)
    assert_complete(command, second)
    assert ": 1 at a time" in command.log.read_text()
    assert RunDirectory(first).is_finished()


@pytest.mark.slow  # starts a sweep twice
def test_interrupt_then_resume(arguments: list[str], tmp_path: Path) -> None:
    """A sweep that is interrupted in the second trial resumes without running the first again."""
    command, first, second = sweep(arguments, tmp_path)
    command.wait_for(second / "log.txt", 400)
    command.process.send_signal(signal.SIGINT)
    log = command.log.read_text
    assert command.process.wait(90) == 130, log()
    assert f"hgpo sweep --resume {first.parent}" in log()
    assert "Traceback" not in log()
    command.assert_nothing_survives()
    assert [(t[LIMIT], t[ALPHA]) for t in results(first.parent)] == [(20, 1)]
    assert RunDirectory(first).is_finished()
    assert not RunDirectory(second).is_finished()

    before = (first / "metrics.jsonl").stat().st_mtime
    resumed = Command(["--resume", str(first.parent)], tmp_path / "log2.txt", "sweep")
    assert_complete(resumed, second)
    assert (first / "metrics.jsonl").stat().st_mtime == before, "a finished trial ran again"


@pytest.mark.slow  # takes minutes; sweeps and trials of this tier run in other tests too
def test_trials_that_fail_do_not_block_the_next(arguments: list[str], tmp_path: Path) -> None:
    """Two trials that fail after their first update both release their CPUs."""
    folder = tmp_path / "sweep"
    options = ["--grid", "policy_server.max_logp_gap=1e-30,2e-30", f"--output={folder}"]
    command = Command([*arguments, ONE_AT_A_TIME, *options], tmp_path / "log.txt", "sweep")
    assert command.process.wait(500) == 1, command.log.read_text()
    log = command.log.read_text()
    for limit in ("max_logp_gap=1e-30", "max_logp_gap=2e-30"):
        (line,) = [x for x in log.splitlines() if limit in x and "failed: RunStoppedError: " in x]
        assert limit in Path(line.rpartition("see ")[2]).read_text()
    assert "2 trials are left" in log
    assert "Traceback" not in log
    command.assert_nothing_survives()
