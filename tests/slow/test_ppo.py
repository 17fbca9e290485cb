"""PPO with a critic in whole and resumed runs. `pytest -m slow`."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from hgpo_rllib.advantages import StepArrays
from hgpo_rllib.advantages.baselines import gae
from tests.integration.conftest import EXAMPLE, SMALL
from tests.integration.runs import episodes_of, rows, run_of
from tests.processes import Command
from tests.slow.test_resume import ALONE, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PPO = ("algorithm.estimator=ppo", "learner.value_clip=null", "learner.critic_lr=5e-3")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which runs share games and a small clone."""
    return tmp_path_factory.mktemp("cache")


def train(cache: Path, output: Path, *settings: str) -> Path:
    """Run `hgpo train` to its end; return the run directory."""
    shared = [str(EXAMPLE), *SMALL, *PPO, f"cache={cache}", f"output={output}"]
    command = Command([*shared, *settings], output.with_suffix(".txt"))
    assert command.process.wait(900) == 0, command.log.read_text()
    return run_of(output)


def advantages_of_values_0(run: Path) -> tuple[list[float], list[float]]:
    """Return the first iteration's advantages: as recorded, and computed for values of 0."""
    episodes = episodes_of(run, 1)
    lengths = [len(episode["steps"]) for episode in episodes]
    steps = [step for episode in episodes for step in episode["steps"]]
    arrays = StepArrays.from_columns(
        task=np.zeros(len(steps), int),
        trajectory=np.repeat(np.arange(len(lengths)), lengths),
        time=[step["time"] for step in steps],
        anchor=np.zeros(len(steps), int),
        step_return=[step["step_return"] for step in steps],
    )
    raw = gae(arrays, np.zeros(len(steps)), gamma=0.95, gae_lambda=0.95)
    return [step["advantage"] for step in steps], ((raw - raw.mean()) / raw.std()).tolist()


def check(metrics: list[dict[str, Any]]) -> None:
    """Check that the critic's metrics exist and are plausible."""
    for row in metrics:
        assert 0 < row["value_loss"] < 100
        assert 0 < row["critic_grad_norm"] < math.inf
        assert row["value_clip_fraction"] == 0
        assert row["explained_variance"] is None or row["explained_variance"] <= 1
        assert row["served_learner_logp_gap"] < 1e-4
    assert any(row["explained_variance"] is not None for row in metrics), "all returns are equal"
    assert metrics[0]["explained_variance"] in (0, None), "a fresh critic says 0"


def test_a_head_on_the_policy(cache: Path, tmp_path: Path) -> None:
    """Recorded advantages are those of the learner, and the checkpoint has no critic."""
    run = train(cache, tmp_path / "head", "iterations=2", "learner.critic=head")
    check(rows(run / "metrics.jsonl"))
    got, expected = advantages_of_values_0(run)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    model, info = AutoModelForCausalLM.from_pretrained(run / "checkpoint", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not any("critic" in name for name in model.state_dict())


def test_a_separate_critic_resumed(cache: Path, tmp_path: Path) -> None:
    """One iteration and a resumed one equal two, since the critic is restored."""
    critic = (*ALONE, "learner.critic=separate")
    whole = train(cache, tmp_path / "whole", "iterations=2", *critic)
    expected = results(whole)
    check(expected)
    run = train(cache, tmp_path / "parts", "iterations=1", *critic)
    assert results(run) == expected[:1]
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("\niterations: 1\n", "\niterations: 2\n"))
    resumed = Command(["--resume", str(run)], tmp_path / "resumed.txt")
    assert resumed.process.wait(900) == 0, resumed.log.read_text()
    assert results(run) == expected
