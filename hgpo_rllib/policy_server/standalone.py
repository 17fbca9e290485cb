"""A policy server without a learner, for evaluations and benchmarks."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import serve

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.deployment import start_policy_server
from hgpo_rllib.policy_server.owner_liveness import start_owner_liveness


@contextmanager
def running_policy_server(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int = 0
) -> Iterator[str]:
    """Start a policy server and yield its Serve application name; delete it after the block.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`).
    """
    app = f"policy-{uuid.uuid4().hex[:8]}"
    owner = start_owner_liveness()
    try:
        start_policy_server(app, model, agent, server, seed=seed, owner=owner)
        yield app
    finally:
        serve.delete(app)
        ray.kill(owner)
