"""Agents without a model: random, oracle, a human in the terminal, and players of environments."""

import asyncio
import contextlib
import functools
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from env_wrappers.errors import DataError
from env_wrappers.spaces import ANY_SEARCH
from hgpo_rllib.agent import Agent, AgentFactory, Turn
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.spec import MakeExpert
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.play.terminal import QUIT, make_console, plain, read_action
from hgpo_rllib.settings.env import EnvSettings

SCRIPTED = ("random", "oracle", "human")
"""Names of agents without a model, besides those in `EnvironmentSpec.players`."""


def scripted_agent_factory(name: str, settings: EnvSettings) -> AgentFactory:
    """Return the function with which an agent without a model starts a task.

    The environment must have the agent, see `check_agent`.
    """
    if name == "random":
        return RandomAgent
    if name == "human":
        return functools.partial(HumanAgent, make_console())
    # Only players have thoughts in the records of episodes.
    experts = find_environment(settings.env_id).experts(settings, thoughts=())
    return functools.partial(ExpertAgent, experts[name])


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let the first Ctrl-C end a block that blocks the event loop.

    In `asyncio.run`, the first Ctrl-C only cancels the main task, which a blocked loop does not do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, handler)
        signal.raise_signal(signal.SIGINT)  # `asyncio.run` raises KeyboardInterrupt when it ends
        raise asyncio.CancelledError from None
    finally:
        signal.signal(signal.SIGINT, handler)


class RandomAgent(Agent):
    """Choose a random admissible action; for "any search", search for a random word of the goal."""

    def __init__(self, info: Mapping[str, Any], group: str, name: str):
        """See `AgentFactory`."""
        self._rng = random.Random(f"{group}/{name}")

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`."""
        action = self._rng.choice(info["admissible_actions"])
        if action == ANY_SEARCH:
            action = f"search[{self._rng.choice(info['goal'].split())}]"
        return Turn(observation, action)


class ExpertAgent(Agent):
    """Act as a scripted player, or follow the oracle's plan."""

    def __init__(self, start: MakeExpert, info: Mapping[str, Any], group: str, name: str):
        """See `AgentFactory`; `start` creates the player from the info of the reset."""
        with _interruptible():  # a planner can take minutes
            self._player = start(info, random.Random(f"{group}/{name}"))
        self._last: str | None = None

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`.

        Raises:
            DataError: the player cannot go on; the message names the game.
        """
        offered = info["admissible_actions"]
        try:
            thought, self._last = self._player.act(observation, offered, self._last)
        except DataError as error:
            raise DataError(f"{info['game']}: {error}") from error
        return Turn(observation, self._last, thought)


class HumanAgent(Agent):
    """Read actions from a person at the terminal, as a number in the list or as text."""

    def __init__(self, console: Console, info: Mapping[str, Any], group: str, name: str):
        """Print the goal; see `AgentFactory`."""
        self._console = console
        console.print(Text(f"\nNew game: {plain(info['goal'])}", "bold"))
        console.print(Text(f"A number or a command is a step, {QUIT!r} stops.", "dim"))

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`.

        Raises:
            RunStoppedError: the player quits.
        """
        with _interruptible():
            action = read_action(observation, info["admissible_actions"], "> ", self._console)
        if action is None:
            raise RunStoppedError("you stopped; repeat the command to continue with this game")
        return Turn(observation, action)
