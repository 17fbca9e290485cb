"""`hgpo train` on WebShop: store, demonstrations, pocket model, one iteration, evaluation."""

import gzip
import json
from pathlib import Path

import pytest

from env_wrappers.webshop.session import parse_action
from tests.integration.test_command import rows
from tests.processes import Command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parents[2] / "tuned_examples" / "webshop_pocket.yaml"
SMALL = (
    "iterations=1",
    "store.products=300",
    "warm_start.games=40",
    "warm_start.optimizer_steps=150",
    "rollout.groups_per_iteration=4",
    "rollout.group_size=4",
    "learner.minibatch_size=64",
    "evaluation.episodes=4",
)


def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    """One command makes all it needs; shoppers search, and what they do is recorded."""
    folders = [f"cache={tmp_path / 'cache'}", f"output={tmp_path}"]
    command = Command([str(EXAMPLE), *SMALL, *folders], tmp_path / "log.txt")
    assert command.process.wait(500) == 0, command.log.read_text()
    command.assert_nothing_survives()
    (run,) = tmp_path.glob("webshop_pocket-*")
    (row,) = rows(run / "metrics.jsonl")
    assert row["episodes"] == 16
    assert row["served_learner_logp_gap"] < 1e-4
    assert row["invalid_rate"] < 0.5, "a clone of 150 steps answers in the agents' format"
    assert {r["split"] for r in rows(run / "evaluation.jsonl")} == {"all", "dev", "test"}
    assert (run / "report.html").stat().st_size > 0
    lines = gzip.decompress((run / "episodes/iteration_0001.jsonl.gz").read_bytes()).splitlines()
    episodes = [json.loads(line) for line in lines]
    assert {episode["game"].partition("/")[0] for episode in episodes} == {"train"}
    for episode in episodes:
        first, *_ = episode["steps"]
        assert first["anchor"] == f"WebShop [SEP] Instruction: [SEP] {episode['goal']} [SEP] Search"
        assert first["prompt"].count(episode["goal"]) == 2
    first_steps = [episode["steps"][0] for episode in episodes]
    searches = [s for s in first_steps if (parse_action(s["action"]) or ("",))[0] == "search"]
    assert searches, "the first page has a search bar"
    assert not any(s["inadmissible"] for s in searches)
