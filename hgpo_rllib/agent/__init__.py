"""Agents: build prompts from observations and memory, parse completions to actions. No Ray."""

from hgpo_rllib.agent.agent import (
    Agent,
    BeginAgent,
    BeginModelAgent,
    ModelAgent,
    ReflexionAgent,
    response_seed,
)
from hgpo_rllib.agent.memory import Memory, Span, Turn
from hgpo_rllib.agent.parsing import action_grammar
from hgpo_rllib.agent.renderer import TextRenderer, TokenRenderer
from hgpo_rllib.agent.strategy import with_strategies

__all__ = [
    "Agent",
    "BeginAgent",
    "BeginModelAgent",
    "Memory",
    "ModelAgent",
    "ReflexionAgent",
    "Span",
    "TextRenderer",
    "TokenRenderer",
    "Turn",
    "action_grammar",
    "response_seed",
    "with_strategies",
]
