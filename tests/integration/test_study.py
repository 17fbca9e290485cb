"""`hgpo study` as a user runs it: interrupted, resumed and reported."""

import json
import signal
from pathlib import Path

import pytest
import yaml

from hgpo_rllib.run.directory import RunDirectory
from tests.integration.runs import ONE_AT_A_TIME
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.slow  # takes minutes; a study runs trials as a sweep does, see test_sweep.py
def test_interrupt_then_resume(arguments: list[str], tmp_path: Path) -> None:
    """A study that is interrupted in the second arm resumes without running the first again."""
    base, *overrides = arguments
    settings = dict(word.split("=", 1) for word in [*overrides, ONE_AT_A_TIME])
    settings.pop("iterations")
    study = {
        "title": "Two estimators",
        "question": "Does anything differ after one iteration?",
        "base": base,
        "iterations": 1,
        "splits": ["valid_seen", "valid_unseen"],
        "seeds": 1,
        "overrides": {key: yaml.safe_load(value) for key, value in settings.items()},
        "arms": {
            "hgpo": {"algorithm.estimator": "hgpo"},
            "grpo": {"algorithm.estimator": "grpo"},
        },
        "analysis": {
            "baseline": "grpo",
            "claims": [{"text": "HGPO is better than GRPO.", "a": "hgpo", "b": "grpo"}],
        },
    }
    file = tmp_path / "studies" / "two.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    docs = tmp_path / "docs"
    run = ["run", str(file), "--docs", str(docs)]
    folder = tmp_path / "study-two"
    first, second = folder / "hgpo-seed0", folder / "grpo-seed0"

    command = Command(run, tmp_path / "log.txt", "study")
    command.wait_for(second / "log.txt", 400)
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(90) == 130, command.log.read_text()
    log = command.log.read_text()
    assert f"hgpo study run {file} --docs {docs} --resume" in log
    assert "seeds per arm are needed" in log
    assert "Traceback" not in log
    command.assert_nothing_survives()
    record = docs / "results" / "two" / "hgpo-seed0.json"
    content = json.loads(record.read_text())
    assert content["evaluated"] == [0, 1]
    assert len(content["splits"]["valid_seen"]["successes"][1]) == 3
    assert record.stat().st_size < 20_000
    assert not RunDirectory(second).is_finished()

    before = (first / "metrics.jsonl").stat().st_mtime
    resumed = Command([*run, "--resume"], tmp_path / "log2.txt", "study")
    assert resumed.process.wait(400) == 0, resumed.log.read_text()
    resumed.assert_nothing_survives()
    assert (first / "metrics.jsonl").stat().st_mtime == before, "a finished trial ran again"
    assert (record.parent / "grpo-seed0.json").is_file()
    assert json.loads(record.read_text()) == content

    report = ["report", "--docs", str(docs), "--studies", str(file.parent)]
    reported = Command(report, tmp_path / "log3.txt", "study")
    assert reported.process.wait(60) == 0, reported.log.read_text()
    page = (docs / "results.md").read_text()
    assert "## Two estimators" in page
    assert "**cannot be told**" in page
    assert (record.parent / "success.png").is_file()
