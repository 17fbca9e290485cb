"""Agents: the interface between an environment and the policy that chooses actions."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hgpo_rllib.agent.memory import Memory, Turn
from hgpo_rllib.agent.renderer import TextRenderer


class Agent(ABC):
    """Base class of agents. An agent plays one task, in one episode or in several attempts."""

    @abstractmethod
    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """Choose the action for an observation; `info` comes from the environment."""

    async def reflect(self, observation: str) -> Turn | None:
        """Reflect on a lost episode, given its last observation, and prepare for the next one.

        Returns:
            The reflection; None if the agent does not retry the task.
        """
        return None


AgentFactory = Callable[[Mapping[str, Any], str, str], Agent]
"""Creates the agent of a task, given the info of the first observation, the name of the group,
which is unique in a run, and a name in the group. Both names seed the sampling."""


class ModelAgent(Agent):
    """Agent that queries a model at every turn and remembers all turns."""

    def __init__(
        self,
        model: Any,
        renderer: TextRenderer,
        info: Mapping[str, Any],
        group: str,
        name: str,
        memory: Memory | None = None,
    ):
        """Start an episode; see `AgentFactory`. Subclasses define the type of `model`.

        The seed of each response depends only on `group`, `name` and its turn, so an episode does
        not depend on the episodes played concurrently. `memory` is the initial memory.
        """
        self._model = model
        self._renderer = renderer.for_task(info)
        self.goal: str = info["goal"]
        self.group = group
        self.memory = Memory() if memory is None else memory
        self._key = f"{group}/{name}"

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`."""
        turn = await self.ask(observation, info["admissible_actions"])
        self.memory.turns.append(turn)
        return turn

    @abstractmethod
    async def ask(self, observation: str, admissible_actions: Sequence[str]) -> Turn:
        """Query the model for one turn."""

    @property
    def number(self) -> int:
        """Number of the next turn, from 1."""
        return len(self.memory.turns) + 1

    @property
    def seed(self) -> int:
        """Seed of the next response."""
        return response_seed(self._key, len(self.memory.turns))


class ModelAgentFactory(Protocol):
    """Create an agent that queries one model with one prompt template."""

    def __call__(
        self, info: Mapping[str, Any], group: str, name: str, memory: Memory | None = None
    ) -> ModelAgent:
        """See `AgentFactory` and `ModelAgent`."""


class ReflexionAgent(Agent):
    """Agent that retries a task up to `trials` times until it wins, with a lesson per loss."""

    def __init__(
        self,
        make_player: ModelAgentFactory,
        make_reflector: ModelAgentFactory,
        trials: int,
        info: Mapping[str, Any],
        group: str,
        name: str,
    ):
        """`make_player` and `make_reflector` create the agents of the roles; see `AgentFactory`."""
        self._make_player = make_player
        self._make_reflector = make_reflector
        self._trials = trials
        self._task = info, group, name
        self._lessons: list[str] = []
        self._agent = self._make(make_player, Memory())

    def _make(self, factory: ModelAgentFactory, memory: Memory) -> ModelAgent:
        info, group, name = self._task
        return factory(info, group, f"{name}/{len(self._lessons)}", memory)

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`."""
        return await self._agent.act(observation, info)

    async def reflect(self, observation: str) -> Turn | None:
        """See `Agent`; the completion is the lesson."""
        if len(self._lessons) + 1 == self._trials:
            return None
        turn = await self._make(self._make_reflector, self._agent.memory).ask(observation, [])
        self._lessons.append(turn.completion)
        self._agent = self._make(self._make_player, Memory(lessons=tuple(self._lessons)))
        return turn


def response_seed(key: str, turn: int) -> int:
    """Return the seed of one response, in 0 … 2^63 - 1."""
    digest = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
