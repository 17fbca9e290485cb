"""The model under evaluation."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from hgpo_rllib.agent import ModelAgentFactory, Turn
from hgpo_rllib.config import RunConfig
from hgpo_rllib.evaluation.protocol import describe_model
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.settings.agent import AgentSettings


@dataclass(frozen=True)
class Model:
    """A running model."""

    agent_factory: Callable[[AgentSettings], ModelAgentFactory]
    """Returns the function that creates agents of the model with the given settings."""
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine that sends requests to the model, and returns its result."""


class EvaluatedAgent(PolicyAgent):
    """`PolicyAgent` whose turns also have the prompt as text, for records and pages."""

    async def ask(self, observation: str, admissible_actions: Sequence[str]) -> Turn:
        """See `PolicyAgent`."""
        turn = await super().ask(observation, admissible_actions)
        return replace(turn, prompt=self._renderer.tokenizer.decode(turn.prompt_ids))


class EvaluatedModel(Protocol):
    """A model to evaluate."""

    def describe(self) -> dict[str, Any]:
        """Return the model's part of the protocol."""

    def open(self) -> AbstractContextManager[Model]:
        """Run the model for the duration of the block."""


@dataclass(frozen=True)
class LocalModel:
    """`config.model`, served by a policy server in a Ray cluster of its own."""

    config: RunConfig

    def describe(self) -> dict[str, Any]:
        """See `EvaluatedModel`."""
        return describe_model(self.config)

    @contextmanager
    def open(self) -> Iterator[Model]:
        """See `EvaluatedModel`.

        Raises:
            ConfigError: the model has no chat template, or the cluster is too small.
        """
        from hgpo_rllib.run.cluster import ray_cluster

        config = self.config.without_learners()
        again = "repeat the command to continue: finished episodes are kept"
        with ray_cluster(config, remedy=lambda: again), served(config) as model:
            yield model


@contextmanager
def served(config: RunConfig) -> Iterator[Model]:
    """Start a policy server for `config.model` in the running Ray cluster.

    Raises:
        ConfigError: the model has no chat template.
    """
    from hgpo_rllib.agent import TokenRenderer
    from hgpo_rllib.models import eos_token_ids, load_chat_tokenizer
    from hgpo_rllib.policy_server.client import PolicyClient
    from hgpo_rllib.policy_server.replicas import Replicas
    from hgpo_rllib.policy_server.server import PolicyServer
    from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, Sampling
    from hgpo_rllib.rollout.restrictions import GrammarReader

    path = str(config.model.model_path)
    tokenizer = load_chat_tokenizer(path)
    server = config.policy_server
    sampling = Sampling(
        config.evaluation.temperature,
        config.agent.max_response_tokens,
        tuple(eos_token_ids(path, tokenizer)),
    )
    with PolicyServer(config.model, config.agent, server, config.seed) as running:
        constrained = config.agent.constrain_actions
        grammars = GrammarReader(tokenizer, sampling.stop_token_ids) if constrained else None
        replicas = Replicas.of(running.app, server.max_outage_s)
        client = PolicyClient(replicas, sampling, STARTING_WEIGHTS, server.most_replicas > 1)

        def agent_factory(settings: AgentSettings) -> ModelAgentFactory:
            renderer = TokenRenderer(tokenizer, settings)
            return partial(EvaluatedAgent, client, renderer, grammars=grammars)

        yield Model(agent_factory, asyncio.run)
