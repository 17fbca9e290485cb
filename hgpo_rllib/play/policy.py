"""A policy that is watched: several responses at each step show how probable its actions are."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hgpo_rllib.agent import Memory, ModelAgentFactory
from hgpo_rllib.jsonl import Row


class WatchedPolicy:
    """Samples several responses at each step of an episode, and acts by the first."""

    def __init__(
        self, make_agent: ModelAgentFactory, samples: int, info: Mapping[str, Any], group: str
    ):
        """Start an episode, with `samples` responses per step; see `AgentFactory`."""
        self._memory = Memory()
        self._agents = [make_agent(info, group, f"0/{i}", self._memory) for i in range(samples)]

    async def choose(self, observation: str, info: Mapping[str, Any]) -> Row:
        """Return the first response, and the share of the responses that choose each action.

        A share has the standard error √(p (1 - p) / samples).

        Raises:
            RequestFailedError: the model rejected the prompt.
            RunStoppedError: the model does not respond.
        """
        actions = info["admissible_actions"]
        turns = await asyncio.gather(*(agent.ask(observation, actions) for agent in self._agents))
        turn = turns[0]
        self._memory.turns.append(turn)
        counts = Counter(turn.action for turn in turns)
        return {
            "prompt": turn.prompt or "",
            "completion": turn.completion,
            "action": turn.action,
            "is_valid": turn.is_valid,
            "shares": {action: count / len(turns) for action, count in counts.most_common()},
        }
