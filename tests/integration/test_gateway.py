"""Episodes that an external agent plays through the gateway, with its own environment."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.learner.batching import token_batch, token_columns
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.trajectory import Trajectory
from tests.integration.weights import responses, sync
from tests.paths import ROOT
from tests.processes import Processes, free_port

pytestmark = pytest.mark.integration
TASKS = [3, 0, 5, 1]


@pytest.fixture(scope="module")
def runner(algorithm: HGPO) -> Iterator[HGPOEnvRunner]:
    """Yield a runner whose episodes the example agent plays."""
    port = free_port()
    config = algorithm.config.copy(copy_frozen=False)
    config.training(constrain_actions=False, gateway_port=port, session_timeout_s=30)
    runner = HGPOEnvRunner(config=config)
    runner.use_weights(sync(algorithm))
    runner._loop.call(runner._open_gateway)
    processes = Processes()
    script = [sys.executable, ROOT / "examples" / "gateway_agent.py", f"http://127.0.0.1:{port}"]
    agent = subprocess.Popen([*script, "2"], env={**processes.environment})
    yield runner
    runner.stop()
    assert agent.wait(60) == 0
    processes.assert_none()


@pytest.fixture(scope="module")
def through(runner: HGPOEnvRunner) -> list[Trajectory]:
    """Return episodes that the example agent played."""
    return runner.play("train", TASKS, 2, 1.0)


def test_it_plays_the_episodes_of_the_main_process(
    algorithm: HGPO, through: list[Trajectory]
) -> None:
    """Responses equal those of the main process, though the agent uses TextWorld's own engine."""
    alone = algorithm.env_runner.play("train", TASKS, 2, 1.0)
    assert responses(through) == responses(alone)
    for one, other in zip(through, alone, strict=True):
        assert (one.won, one.episode_return) == (other.won, other.episode_return)
        assert one.steps[-1].terminated == other.steps[-1].terminated
        assert one.info["game"] == other.info["game"]


def test_the_learner_computes_its_log_probabilities(
    algorithm: HGPO, through: list[Trajectory]
) -> None:
    columns = token_columns(through)
    batch = token_batch(columns, np.arange(len(columns["response_length"])), torch.device("cpu"))
    with torch.no_grad():
        logp = algorithm.learner_group._learner.policy.forward_train(batch)["logp"]
    torch.testing.assert_close(logp, batch["behavior_logp"], rtol=0, atol=1e-3)
