"""Agents that follow a strategy for a whole episode: StraTA, arXiv 2605.06642."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hgpo_rllib.advantages.estimators import STRATEGY
from hgpo_rllib.agent.agent import Agent, AgentFactory, ModelAgentFactory
from hgpo_rllib.agent.memory import Memory, Turn


class StrategyAgent(Agent):
    """Agent that follows one strategy, the first of the responses at its first step."""

    def __init__(
        self,
        make_player: Callable[[Memory], Agent],
        find_strategy: Callable[[str], Coroutine[Any, Any, Turn]],
    ):
        """Start an episode.

        `make_player` creates the agent that acts, with a memory. `find_strategy` returns the
        strategy for the first observation.
        """
        self._make_player = make_player
        self._find_strategy = find_strategy
        self._agent: Agent | None = None

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`. The strategy is written before the first action, without a step."""
        if self._agent is not None:
            return await self._agent.act(observation, info)
        strategy = await self._find_strategy(observation)
        self._agent = self._make_player(Memory(strategy=strategy.completion))
        turn = await self._agent.act(observation, info)
        return replace(turn, preceding=(strategy,))


def with_strategies(
    make_player: ModelAgentFactory, make_writer: ModelAgentFactory, executions: int
) -> AgentFactory:
    """Return the function that creates agents with strategies.

    Members 0 to M - 1 of a group share its first strategy, the next M the second, and so on, where
    M is `executions`. The first member that needs a strategy requests it. `make_player` creates the
    agents that act, `make_writer` those that write a strategy as their only response.
    """
    written: dict[tuple[str, int], asyncio.Task[Turn]] = {}

    def make_agent(info: Mapping[str, Any], group: str, name: str) -> Agent:
        number = int(name.partition("/")[0]) // executions

        async def find_strategy(observation: str) -> Turn:
            key = group, number
            if key not in written:
                writer = make_writer(info, group, f"strategy/{number}")
                written[key] = asyncio.ensure_future(writer.ask(observation, []))
            task = written[key]
            try:
                turn = await task
            except BaseException:  # the next attempt requests it again
                if written.get(key) is task:
                    del written[key]
                raise
            return replace(turn, role=STRATEGY, action="", is_valid=not turn.response_truncated)

        return StrategyAgent(partial(make_player, info, group, name), find_strategy)

    return make_agent
