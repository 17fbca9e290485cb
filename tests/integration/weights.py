"""The weight sync of an iteration, for tests that change weights themselves."""

from ray.rllib.env.env_runner_group import EnvRunnerGroup

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.policy_server.types import WeightTag


def sync(algorithm: HGPO, group: EnvRunnerGroup | None = None) -> WeightTag:
    """Send the learner's weights to env runners, by default the algorithm's; return their tag."""
    runners = group or algorithm.env_runner_group
    runners.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
    return algorithm.env_runner.weights
