"""Agents: build prompts from observations and memory, parse completions to actions. No Ray."""

from hgpo_rllib.agent.agent import (
    Agent,
    AgentFactory,
    ModelAgent,
    ModelAgentFactory,
    ReflexionAgent,
    response_seed,
)
from hgpo_rllib.agent.memory import Memory, Span, Turn
from hgpo_rllib.agent.parsing import action_grammar
from hgpo_rllib.agent.renderer import TextRenderer, TokenRenderer
from hgpo_rllib.agent.strategy import with_strategies

__all__ = [
    "Agent",
    "AgentFactory",
    "Memory",
    "ModelAgent",
    "ModelAgentFactory",
    "ReflexionAgent",
    "Span",
    "TextRenderer",
    "TokenRenderer",
    "Turn",
    "action_grammar",
    "response_seed",
    "with_strategies",
]
