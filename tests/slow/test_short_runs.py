"""Options of the learner in whole runs: real Ray, Serve and vLLM. `pytest -m slow`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.directory import RunDirectory
from tests.integration.conftest import EXAMPLE, SMALL
from tests.integration.runs import rows, run_of
from tests.processes import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which runs share games and a small clone."""
    return tmp_path_factory.mktemp("cache")


def train(cache: Path, output: Path, *settings: str) -> Path:
    """Run `hgpo train` for two iterations in float32; return the run directory."""
    shared = [str(EXAMPLE), *SMALL, "policy_server.max_logp_gap=1e-4"]
    places = [f"cache={cache}", f"output={output}"]
    command = Command([*shared, *places, *settings], output.with_suffix(".txt"))
    assert command.process.wait(900) == 0, command.log.read_text()
    return run_of(output)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def check(metrics: list[dict[str, Any]]) -> None:
    """Check two iterations in which engine and learner agreed and the learner had gradients."""
    assert [row["iteration"] for row in metrics] == [1, 2]
    for row in metrics:
        assert row["behavior_logp_gap"] < 1e-3
        assert row["served_learner_logp_gap"] < 1e-4
        assert row["grad_norm"] > 0


def test_lora(cache: Path, tmp_path: Path) -> None:
    """Adapters are served and restored, and the checkpoint is a whole model."""
    lora = ("model.lora_rank=4", "model.lora_alpha=16", "learner.lr=1e-2")
    run = train(cache, tmp_path / "lora", *lora)
    metrics = rows(run / "metrics.jsonl")
    check(metrics)
    assert metrics[1]["kl"] > 0, "the frozen policy is the model without adapters"
    (start,) = cache.glob("pocket-model-*")
    before, after = weights(start), weights(run / "checkpoint")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("_proj.weight" in name for name in changed)
    AutoModelForCausalLM.from_pretrained(run / "checkpoint")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("iterations: 2", "iterations: 3"))
    resumed = Command(["--resume", str(run)], tmp_path / "resumed.txt")
    assert resumed.process.wait(900) == 0, resumed.log.read_text()
    assert rows(run / "metrics.jsonl")[2]["behavior_logp_gap"] < 1e-3


def test_truncated_importance_weights(cache: Path, tmp_path: Path) -> None:
    """With one step off in bfloat16, importance weights are truncated for some tokens."""
    corrected = ("learner.old_logp=recomputed", "learner.importance_cap=1.2")
    loose = ("model.dtype=bfloat16", "policy_server.max_logp_gap=null")
    ahead = ("rollout.schedule=one_step_off",)
    run = train(cache, tmp_path / "weights", *corrected, *loose, *ahead, "iterations=3")
    metrics = rows(run / "metrics.jsonl")
    assert len(metrics) == 3
    for row in metrics:
        assert 0.5 < row["importance_weight"] <= 1.2
        assert 0 < row["behavior_kl"] < 1
    assert any(row["importance_cut_fraction"] > 0 for row in metrics)


@pytest.mark.parametrize(("sharded", "rank"), [("true", 0), ("false", 0), ("true", 4)])
def test_two_learners(cache: Path, tmp_path: Path, sharded: str, rank: int) -> None:
    """Two learner processes train a run, which the main process alone can resume."""
    learners = ("cluster.num_learners=2", "policy_server.replica_cpus=0", f"model.lora_rank={rank}")
    run = train(cache, tmp_path / "two", *learners, f"learner.shard_parameters={sharded}")
    check(rows(run / "metrics.jsonl"))
    config = run / "config.yaml"
    text = config.read_text().replace("iterations: 2", "iterations: 3")
    text = text.replace("num_learners: 2", "num_learners: 0")
    config.write_text(text.replace("shard_parameters: true", "shard_parameters: false"))
    resumed = Command(["--resume", str(run)], tmp_path / "resumed.txt")
    assert resumed.process.wait(900) == 0, resumed.log.read_text()
    third = rows(run / "metrics.jsonl")[2]
    assert third["behavior_logp_gap"] < 1e-3
    assert third["grad_norm"] > 0


def test_from_checkpoint(cache: Path, tmp_path: Path) -> None:
    """RLlib's `from_checkpoint` restores the algorithm with its policy server, and it trains on."""
    run = train(cache, tmp_path / "one", "iterations=1")
    directory = RunDirectory(run)
    with ray_cluster(directory.config_to_resume()):
        algorithm = HGPO.from_checkpoint(str(directory.state.absolute()))
        try:
            assert algorithm.iteration == 1
            algorithm.save_pretrained(str(tmp_path / "restored"))
            result = algorithm.train()
            assert result["served_learner_logp_gap"] < 1e-4
            assert algorithm.iteration == 2
        finally:
            algorithm.stop()
    saved, restored = weights(directory.checkpoint), weights(tmp_path / "restored")
    assert saved.keys() == restored.keys()
    assert all(torch.equal(saved[name], restored[name]) for name in saved)


def test_an_exploding_ratio_ends_the_run(cache: Path, tmp_path: Path) -> None:
    """With a low `max_ratio`, the second mini-batch, which is off-policy, ends the run."""
    shared = [str(EXAMPLE), *SMALL, f"cache={cache}", f"output={tmp_path}"]
    command = Command([*shared, "learner.max_ratio=1.001"], tmp_path / "log.txt")
    assert command.process.wait(900) == 1, command.log.read_text()
    command.assert_nothing_survives()
    run = run_of(tmp_path)
    lines = command.log.read_text().splitlines()
    (message,) = [line for line in lines if line.startswith("hgpo: ")]
    assert "in update 1: a token ratio of 1." in message
    assert " exceeds learner.max_ratio=1.001; it has " in message
    assert message.endswith(f"; continue with: hgpo train --resume {run}")
    assert not any(line.startswith("Traceback") for line in lines), "\n".join(lines)
    assert not (run / "metrics.jsonl").exists()
    (start,) = cache.glob("pocket-model-*")
    before, saved = weights(start), weights(run / "checkpoint")
    assert all(torch.equal(saved[name], before[name]) for name in before)
