"""The model that is evaluated, and how to ask it."""

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
    """Something that answers."""

    begin: MakeBegin
    decode: Decode
    """Its token ids to text."""
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Waits for what asks it."""


@dataclass(frozen=True)
class Subject:
    """What is evaluated."""

    describe: Callable[[], dict[str, Any]]
    """Its part of the protocol."""
    open: Callable[[], AbstractContextManager[Model]]
    """It answers for as long as the block."""


def local_model(config: RunConfig) -> Subject:
    """`config.model`, in a policy server of its own, in a Ray of its own.

    Opening it raises ConfigError where it has no chat template, or the cluster is too small.
    """
    return Subject(partial(describe_model, config), partial(_in_own_cluster, config))


@contextmanager
def _in_own_cluster(config: RunConfig) -> Iterator[Model]:
    from hgpo_rllib.run.cluster import ray_cluster
    from hgpo_rllib.run.watchdog import exit_when_ray_ends

    with (
        ray_cluster(config.without_learners()),
        terminate_like_interrupt(),  # Ray has set its own handler
        exit_when_ray_ends(lambda: "run the command again: it goes on where it was"),
        served(config) as model,
    ):
        yield model


@contextmanager
def served(config: RunConfig) -> Iterator[Model]:
    """`config.model` in a policy server of its own, in the Ray that runs.

    Raises:
        ConfigError: the model has no chat template.
    """
    from hgpo_rllib.agent import TokenRenderer
    from hgpo_rllib.models import eos_token_ids, load_tokenizer
    from hgpo_rllib.policy_server.client import PolicyClient
    from hgpo_rllib.policy_server.replicas import Replicas
    from hgpo_rllib.policy_server.standalone import running_policy_server
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
    starting = running_policy_server(config.model, config.agent, server, config.seed)
    with starting as app:
        several = max(server.num_replicas, server.max_replicas or 0) > 1
        replicas = Replicas.of(app, server.max_outage_s)
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
