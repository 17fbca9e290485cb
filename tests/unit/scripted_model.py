"""A scripted model for evaluations, and evaluation requests for it."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hgpo_rllib.agent import ModelAgent, ModelAgentFactory, TextRenderer, Turn
from hgpo_rllib.config import load_config
from hgpo_rllib.evaluation.agents import agent_overrides
from hgpo_rllib.evaluation.evaluate import EvaluationResult, Request
from hgpo_rllib.evaluation.models import EvaluatedModel, Model
from hgpo_rllib.settings.agent import AgentSettings

Say = Callable[[str, int], str]
"""A message and a seed to an answer."""


class ScriptedModel:
    """A model that responds with a function and records all messages."""

    def __init__(self, say: Say, weights: str = "a"):
        self.say = say
        self.weights = weights
        self.messages: list[str] = []

    def describe(self) -> dict[str, Any]:
        hashes = {"model.safetensors": self.weights}
        return {"served_by": "script", "weights_sha256": hashes, "dtype": "none", "device": "none"}

    @contextmanager
    def open(self) -> Iterator[Model]:
        yield Model(self.agent_factory, asyncio.run)

    def agent_factory(self, settings: AgentSettings) -> ModelAgentFactory:
        renderer = TextRenderer(settings)
        return lambda *task, **named: ScriptedAgent(self, renderer, *task, **named)


class ScriptedAgent(ModelAgent):
    """An agent with the real messages and parsing, and a scripted model."""

    _model: ScriptedModel

    async def ask(self, observation: str, admissible_actions: Sequence[str]) -> Turn:
        turns = self.memory.last(self._renderer.memory_length)
        fixed = (self.goal, observation, admissible_actions, len(self.memory.turns))
        message = self._renderer.message(*fixed, turns, self.memory)
        self._model.messages.append(message)
        await asyncio.sleep(0)
        text = self._model.say(message, self.seed)
        parsed = self._renderer.parse(text, admissible_actions)
        return Turn(
            observation,
            parsed.action,
            text,
            number=self.number,
            is_valid=parsed.is_valid,
            prompt=message,
            tokens=(7, 2),
        )


def draw(message: str, seed: int) -> str:
    """Return a response with a random action of those that the prompt offers."""
    offered = message.partition("[")[2].rpartition("]")[0].split("'")[1::2]
    action = offered[np.random.default_rng(seed).integers(len(offered))]
    return f"<think>why not</think><action>{action}</action>"


def make(
    data: Path,
    output: Path,
    model: EvaluatedModel | None,
    agent: str = "hgpo",
    overrides: Sequence[str] = (),
    **changes: Any,
) -> Request:
    """Return a request for the three generated games of valid_seen, ten steps each."""
    settings = [f"env.data={data}", "env.max_steps=10", "rollout.max_concurrent_episodes=1"]
    settings += overrides
    config = load_config(None, [*agent_overrides(agent, "hgpo/ALFWorld-v0", False), *settings])
    request = Request(config, model, agent, "valid_seen", "full", 2, None, 3, output, "a model")
    return replace(request, **changes)


def lines(finished: EvaluationResult) -> list[dict[str, Any]]:
    """Return the recorded episodes."""
    return [json.loads(line) for line in (finished.path / "episodes.jsonl").open()]
