"""A user's engine and transport in a policy server: Ray and Serve, without vLLM."""

import asyncio

import pytest
import torch

from hgpo_rllib.config import RunConfig
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, Generation, Prompt, Sampling
from tests.unit.policy_server import memory_engine
from tests.unit.policy_server.memory_engine import named_memory

__all__ = ["named_memory"]  # fixture
pytestmark = pytest.mark.integration


@pytest.mark.usefixtures("cluster", "named_memory")
def test_a_policy_server_of_another_engine(run_config: RunConfig) -> None:
    """Responses come from the weights that requests name."""
    names = {"engine": "memory", "weight_transport": "memory", "replica_cpus": 0}
    server = run_config.policy_server.model_copy(update=names)
    new = WeightPublisher(torch.float32, memory_engine).publish({"logp": torch.tensor(-2.0)})
    with PolicyServer(run_config.model, run_config.agent, server) as running:
        replicas = Replicas.of(running.app, max_outage_s=60)
        for tag, logp in ((STARTING_WEIGHTS, -1.0), (new, -2.0)):
            call = replicas.generate([Prompt([1, 2], 3)], Sampling(1.0, 2, ()), tag)
            (answer,) = asyncio.run(call)
            assert isinstance(answer, Generation)
            assert (answer.version, answer.logp.tolist()) == (tag.version, [logp, logp])
