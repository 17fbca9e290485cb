"""Agents: the only seam between an environment and whatever decides what to do."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hgpo_rllib.agent.memory import Memory, Turn
from hgpo_rllib.agent.renderer import TextRenderer


class Agent(ABC):
    """Plays one task: one episode, or several if it learns from those that it loses."""

    @abstractmethod
    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """What to do at an observation; `info` is the environment's."""

    async def reflect(self, observation: str) -> Turn | None:
        """Look back on a lost episode, whose last observation this is, and prepare for the next.

        Returns:
            What the agent made of it; None: it does not play the task again.
        """
        return None


class BeginAgent(Protocol):
    """Makes the agent of a task."""

    def __call__(self, info: Mapping[str, Any], group: str, name: str) -> Agent:
        """The agent of the episode that `info` began.

        Args:
            info: of the first observation.
            group: names the group among all of a run.
            name: of the episode in its group; draws are seeded by the two.
        """


class ModelAgent(Agent):
    """Asks a model at every turn, and remembers what it saw, said and did."""

    def __init__(
        self,
        model: Any,
        renderer: TextRenderer,
        info: Mapping[str, Any],
        group: str,
        name: str,
        memory: Memory | None = None,
    ):
        """Begin an episode.

        Args:
            model: answers; of what type it is, subclasses say.
            renderer: writes prompts and reads completions.
            info: of its first observation.
            group: names the group among all of a run; its members' prompts begin alike.
            name: of the episode in its group. The seed of each response is made from the two: an
                episode is the same whatever others play beside it.
            memory: what is remembered already.
        """
        self._model = model
        self._renderer = renderer
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
        """Put the turn to the model."""

    @property
    def number(self) -> int:
        """Of the turn to come."""
        return len(self.memory.turns) + 1

    @property
    def seed(self) -> int:
        """Of the response to come."""
        return response_seed(self._key, len(self.memory.turns))


class BeginModelAgent(Protocol):
    """Makes an agent that asks one model with one set of prompts."""

    def __call__(
        self, info: Mapping[str, Any], group: str, name: str, memory: Memory | None = None
    ) -> ModelAgent:
        """See `BeginAgent` and `ModelAgent`."""


class ReflexionAgent(Agent):
    """Plays a task up to `trials` times, until it is won; draws a lesson from each loss."""

    def __init__(
        self,
        playing: BeginModelAgent,
        reflecting: BeginModelAgent,
        trials: int,
        info: Mapping[str, Any],
        group: str,
        name: str,
    ):
        """`playing` plays, `reflecting` looks back; for the rest see `BeginAgent`."""
        self._playing = playing
        self._reflecting = reflecting
        self._trials = trials
        self._task = info, group, name
        self._lessons: list[str] = []
        self._agent = self._begin(playing, Memory())

    def _begin(self, begin: BeginModelAgent, memory: Memory) -> ModelAgent:
        info, group, name = self._task
        return begin(info, group, f"{name}/{len(self._lessons)}", memory)

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`."""
        return await self._agent.act(observation, info)

    async def reflect(self, observation: str) -> Turn | None:
        """See `Agent`: the lesson is the completion."""
        if len(self._lessons) + 1 == self._trials:
            return None
        turn = await self._begin(self._reflecting, self._agent.memory).ask(observation, [])
        self._lessons.append(turn.completion)
        self._agent = self._begin(self._playing, Memory(lessons=tuple(self._lessons)))
        return turn


def response_seed(key: str, turn: int) -> int:
    """The seed of one response, in 0 … 2^63 - 1."""
    digest = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
