"""A policy server without a learner, for evaluations and benchmarks."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from hgpo_rllib.config import AgentSettings, ModelSettings, PolicyServerSettings
from hgpo_rllib.policy_server.deployment import start_lifeline, start_policy_server


@contextmanager
def running_policy_server(
    model: ModelSettings, agent: AgentSettings, server: PolicyServerSettings, seed: int = 0
) -> Iterator[tuple[str, DeploymentHandle]]:
    """The name of a Serve application of its own, and its handle; deleted with the block.

    Ray and Serve have to run (`hgpo_rllib.run.cluster.ray_cluster`).
    """
    app = f"policy-{uuid.uuid4().hex[:8]}"
    lifeline = start_lifeline()
    try:
        yield app, start_policy_server(app, model, agent, server, seed=seed, lifeline=lifeline)
    finally:
        serve.delete(app)
        ray.kill(lifeline)
