"""Players that ask no model: at random, by a plan that wins, or a person in the terminal."""

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from env_wrappers.errors import DataError
from hgpo_rllib.agent import Agent, BeginAgent, Turn
from hgpo_rllib.agent.parsing import ANY_SEARCH
from hgpo_rllib.config import EnvSettings
from hgpo_rllib.environments import OraclePlan, find_environment
from hgpo_rllib.play.console import QUIT, make_console, plain
from hgpo_rllib.play.terminal import read_action, show
from hgpo_rllib.section import RunStoppedError

SCRIPTED = ("random", "oracle", "human")
"""Agents that ask no model."""


def begin_scripted(name: str, settings: EnvSettings) -> BeginAgent:
    """How the agent of `SCRIPTED` with that name begins a task.

    Raises:
        ConfigError: it cannot play this environment.
    """
    if name == "random":
        return RandomAgent
    if name == "human":
        return functools.partial(HumanAgent, make_console())
    return functools.partial(OracleAgent, find_environment(settings.env_id).oracle(settings))


class RandomAgent(Agent):
    """Any admissible action; where all searches are one of them, one for a word of the goal."""

    def __init__(self, info: Mapping[str, Any], group: str, name: str):
        """See `BeginAgent`."""
        self._rng = random.Random(f"{group}/{name}")

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`."""
        action = self._rng.choice(info["admissible_actions"])
        if action == ANY_SEARCH:
            action = f"search[{self._rng.choice(info['goal'].split())}]"
        return Turn(observation, action)


class OracleAgent(Agent):
    """Plays a plan that wins."""

    def __init__(
        self,
        find_plan: Callable[[Mapping[str, Any]], OraclePlan],
        info: Mapping[str, Any],
        group: str,
        name: str,
    ):
        """`find_plan`: from `EnvironmentSpec.oracle`; for the rest see `BeginAgent`."""
        self._plan = find_plan(info)
        self._rest = iter(self._plan.actions)
        self._game = info["game"]

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`.

        Raises:
            DataError: the plan is at its end, without having won.
        """
        action = next(self._rest, None)
        if action is not None:
            return Turn(observation, action)
        if self._plan.fallback is None:
            raise DataError(f"{self._game}: the oracle's plan ends before the goal is reached")
        return Turn(observation, self._plan.fallback, self._plan.fallback_reason)


class HumanAgent(Agent):
    """A person at the terminal: a number is an action of the list, words are one as written."""

    def __init__(self, console: Console, info: Mapping[str, Any], group: str, name: str):
        """Says the goal; see `BeginAgent`."""
        self._console = console
        console.print(Text(f"\nNew game: {plain(info['goal'])}", "bold"))
        console.print(Text(f"A number or a command is a step, {QUIT!r} stops.", "dim"))

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Agent`.

        Raises:
            RunStoppedError: the person has had enough.
        """
        show(observation, info["admissible_actions"], self._console)
        action = read_action(info["admissible_actions"], "> ", self._console)
        if action is None:
            raise RunStoppedError("you stopped; the same command goes on with this game")
        return Turn(observation, action)
