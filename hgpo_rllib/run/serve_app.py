"""A policy as an application in a config file of Ray Serve: ``serve deploy docker/serve.yaml``."""

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application

from hgpo_rllib.placement import actor_options, replica_resources
from hgpo_rllib.policy_server.openai_replica import OpenAIReplica
from hgpo_rllib.run.checkpoint import load_policy_config


class Arguments(BaseModel):
    """Arguments of the application (``args``), those of `hgpo serve`."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: str
    """Run directory, HuggingFace directory, or name on the hub."""
    overrides: list[str] = []
    """Settings to override, as ``section.key=value``."""
    name: str = "policy"
    """Name of the model in requests."""


def application(arguments: Arguments) -> Application:
    """Return the application of a policy, with the resources of its `policy_server` settings.

    Raises:
        ConfigError: the policy does not exist or is damaged, or an override is invalid.
    """
    config = load_policy_config(arguments.checkpoint, arguments.overrides).without_learners()
    deployment = serve.deployment(
        OpenAIReplica,
        name="policy",
        # Serve queues further requests, for replicas that it adds meanwhile.
        max_ongoing_requests=config.policy_server.max_num_seqs,
        ray_actor_options=actor_options(replica_resources(config.policy_server)),
    )
    return deployment.bind(config, arguments.name)
