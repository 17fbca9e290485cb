"""Trajectories: the steps of one episode of a group member."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hgpo_rllib.advantages.groups import ROUNDING
from hgpo_rllib.agent import Turn


@dataclass(frozen=True)
class Step:
    """One turn of an agent and the environment's response to it."""

    turn: Turn
    observation: str
    """Observation after the action."""
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    """Info after the action."""
    env_s: float
    """Seconds of the environment step, including the time in the queue."""


@dataclass(frozen=True)
class Trajectory:
    """A member's whole episode; ``len`` is its number of steps."""

    info: dict[str, Any]
    """Info of the first observation."""
    steps: list[Step]
    group: str = ""
    """Name of the group, unique in a run. Its members play the same task and are compared."""
    member: int = 0
    """Number of the member in its group; numbers of discarded members are missing."""
    earlier: tuple["EarlierTrial", ...] = ()
    """Lost episodes of the same task that the agent played before this one."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def turns(self) -> list[Turn]:
        """Turns of all steps, in order."""
        return [step.turn for step in self.steps]

    @property
    def won(self) -> bool:
        """Whether the episode ended with success."""
        return bool(self.steps[-1].info["won"])

    @property
    def episode_return(self) -> float:
        """Sum of the rewards."""
        return sum(step.reward for step in self.steps)


def have_equal_returns(group: Sequence[Trajectory]) -> bool:
    """Return whether all members have the same return, up to rounding, or none is left."""
    returns = [trajectory.episode_return for trajectory in group]
    return not returns or math.isclose(min(returns), max(returns), rel_tol=ROUNDING)


@dataclass(frozen=True)
class EarlierTrial:
    """A lost episode and the agent's reflection on it."""

    trajectory: Trajectory
    reflection: Turn


class ResponseRow(NamedTuple):
    """A response and its position in a list of trajectories."""

    trajectory: int
    """Index of the trajectory."""
    step: int
    """Index of the step in all trajectories together."""
    response: Turn


def response_rows(trajectories: Sequence[Trajectory]) -> list[ResponseRow]:
    """Return one row per response, ordered by trajectory and step, the acting response last.

    An agent with one role has one response per step.
    """
    steps = (
        (index, turn) for index, trajectory in enumerate(trajectories) for turn in trajectory.turns
    )
    return [
        ResponseRow(index, step, response)
        for step, (index, turn) in enumerate(steps)
        for response in turn.responses
    ]
