"""The step-wise agent: observation and memory to prompt, completion to action. Pure, no Ray."""

from hgpo_rllib.agent.agent import StepAgent, TextAgent
from hgpo_rllib.agent.memory import Memory, Turn
from hgpo_rllib.agent.parsing import ParsedAction, parse_completion

__all__ = ["Memory", "ParsedAction", "StepAgent", "TextAgent", "Turn", "parse_completion"]
