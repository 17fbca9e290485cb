"""The model under evaluation."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from hgpo_rllib.agent import BeginModelAgent
from hgpo_rllib.config import AgentSettings, ConfigError, RunConfig
from hgpo_rllib.evaluation.agents import MakeBegin
from hgpo_rllib.evaluation.protocol import describe_model
from hgpo_rllib.evaluation.records import Decode
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.run.interrupt import terminate_like_interrupt


@dataclass(frozen=True)
class Model:
    """A running model."""

    begin: MakeBegin
    decode: Decode
    """Converts token ids to text."""
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine that sends requests to the model, and returns its result."""


@dataclass(frozen=True)
class Subject:
    """A model to evaluate."""

    describe: Callable[[], dict[str, Any]]
    """Returns the model's part of the protocol."""
    open: Callable[[], AbstractContextManager[Model]]
    """Runs the model for the duration of the block."""


def local_model(config: RunConfig) -> Subject:
    """Return `config.model` as a subject that starts Ray and a policy server when opened.

    Opening it raises ConfigError if the model has no chat template or the cluster is too small.
    """
    return Subject(partial(describe_model, config), partial(_in_own_cluster, config))


@contextmanager
def _in_own_cluster(config: RunConfig) -> Iterator[Model]:
    from hgpo_rllib.run.cluster import ray_cluster
    from hgpo_rllib.run.watchdog import exit_when_ray_ends

    with (
        ray_cluster(config.without_learners()),
        terminate_like_interrupt(),  # replaces Ray's handler
        exit_when_ray_ends(lambda: "run the command again: it goes on where it was"),
        served(config) as model,
    ):
        yield model


@contextmanager
def served(config: RunConfig) -> Iterator[Model]:
    """Start a policy server for `config.model` in the running Ray cluster.

    Raises:
        ConfigError: the model has no chat template.
    """
    from hgpo_rllib.agent import TokenRenderer
    from hgpo_rllib.models import eos_token_ids, load_tokenizer
    from hgpo_rllib.policy_server.client import PolicyClient
    from hgpo_rllib.policy_server.replicas import Replicas
    from hgpo_rllib.policy_server.server import PolicyServer
    from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, Sampling

    path = str(config.model.model_path)
    tokenizer = load_tokenizer(path)
    if not tokenizer.chat_template:
        raise ConfigError(f"{path} has no chat template to build prompts with")
    server = config.policy_server
    sampling = Sampling(
        config.evaluation.temperature,
        config.agent.max_response_tokens,
        tuple(eos_token_ids(path, tokenizer)),
    )
    with PolicyServer(config.model, config.agent, server, config.seed) as running:
        several = max(server.num_replicas, server.max_replicas or 0) > 1
        replicas = Replicas.of(running.app, server.max_outage_s)
        client = PolicyClient(replicas, sampling, STARTING_WEIGHTS, several)

        def begin(settings: AgentSettings) -> BeginModelAgent:
            renderer = TokenRenderer(
                tokenizer,
                prompt=settings.prompt,
                memory_length=settings.memory_length or 0,
                max_prompt_tokens=settings.max_prompt_tokens,
                shorten=settings.shorten_prompts,
                inadmissible_is_invalid=settings.inadmissible_is_invalid,
            )
            return partial(PolicyAgent, client, renderer)

        yield Model(begin, tokenizer.decode, asyncio.run)
