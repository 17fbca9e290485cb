"""A killed and resumed run has the same results as an uninterrupted one. `pytest -m slow`."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import EXAMPLE, SMALL
from tests.integration.runs import rows, run_of
from tests.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# The engine computes one request at a time, without a prefix cache: batches and cached prefixes
# would change the last bits of its log-probabilities.
ALONE = ("policy_server.max_num_seqs=1", "policy_server.enable_prefix_caching=false")


def settings(output: Path, cache: Path) -> list[str]:
    small = [*SMALL, "iterations=6", "checkpoint_interval=1"]
    return [str(EXAMPLE), *small, *ALONE, f"output={output}", f"cache={cache}"]


def results(run: Path) -> list[dict[str, Any]]:
    """Return the metrics without times and memory."""
    free = ("_s", "_mib")
    return [
        {name: value for name, value in row.items() if not name.endswith(free)}
        for row in rows(run / "metrics.jsonl")
    ]


def changed(path: Path) -> float:
    """Return when the path was last modified, or 0 while a folder is being replaced."""
    return path.stat().st_mtime if path.exists() else 0


def damage(file: Path) -> None:
    """Cut off the end of a file."""
    os.truncate(file, file.stat().st_size - 10)


def test_three_and_three_iterations_are_six(tmp_path: Path) -> None:
    """After SIGKILL in the fourth iteration and a damaged checkpoint, results are identical."""
    cache = tmp_path / "cache"
    whole = Command(settings(tmp_path / "whole", cache), tmp_path / "whole.txt")
    assert whole.process.wait(900) == 0, whole.log.read_text()
    expected = results(run_of(tmp_path / "whole"))
    assert [row["iteration"] for row in expected] == list(range(1, 7))

    first = Command(settings(tmp_path / "parts", cache), tmp_path / "first.txt")
    first.wait_for(tmp_path / "parts" / "*" / "episodes" / "iteration_0003*")
    run = run_of(tmp_path / "parts")
    first.wait_until(lambda: changed(run / "state") >= changed(run / "metrics.jsonl"))
    time.sleep(1)
    first.process.kill()
    first.process.wait()
    first.assert_nothing_survives(180)  # Ray's agent notices the end late
    assert len(rows(run / "metrics.jsonl")) == 3, "it was to be killed in the fourth iteration"

    damage(run / "state" / "learner_group" / "learner" / "state.pkl")
    second = Command(["--resume", str(run)], tmp_path / "second.txt")
    assert second.process.wait(900) == 0, second.log.read_text()
    assert "resuming from the previous one" in second.log.read_text()
    assert "resumed after iteration 2" in second.log.read_text()
    assert results(run) == expected
