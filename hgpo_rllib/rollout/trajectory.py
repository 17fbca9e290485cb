"""One episode of one group member: what agents play, and all that is computed from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hgpo_rllib.agent import Turn


@dataclass(frozen=True)
class Step:
    """One turn of an agent, and what the environment said to it."""

    turn: Turn
    observation: str
    """What followed."""
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    """Of what followed."""
    env_s: float
    """Seconds of the environment's step, the wait for its turn included."""


@dataclass(frozen=True)
class Trajectory:
    """One member's whole episode; ``len`` is its number of steps."""

    info: dict[str, Any]
    """Of the first observation."""
    steps: list[Step]
    group: str = ""
    """Names the group among all of a run: its members play the same task and are compared."""
    member: int = 0
    """Number of the member in its group; numbers of members that were given up are missing."""
    earlier: tuple["LostEpisode", ...] = ()
    """Episodes of the same task before it that were lost."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def turns(self) -> list[Turn]:
        """Those of all steps, in order."""
        return [step.turn for step in self.steps]

    @property
    def won(self) -> bool:
        """Whether the episode ended with success."""
        return bool(self.steps[-1].info["won"])

    @property
    def episode_return(self) -> float:
        """Sum of the rewards."""
        return sum(step.reward for step in self.steps)


@dataclass(frozen=True)
class LostEpisode:
    """A lost episode, and what its agent made of it."""

    trajectory: Trajectory
    reflection: Turn


class ResponseRow(NamedTuple):
    """A response, and where it stands among those of some trajectories."""

    trajectory: int
    """Index of the trajectory."""
    turn: int
    """Index of the step in its trajectory."""
    step: int
    """Index of the step among those of all trajectories."""
    response: Turn


def response_rows(trajectories: Sequence[Trajectory]) -> list[ResponseRow]:
    """One row a response: trajectory after trajectory, step after step, the acting one last.

    An agent with one role has one a step.
    """
    steps = (
        (index, time, turn)
        for index, trajectory in enumerate(trajectories)
        for time, turn in enumerate(trajectory.turns)
    )
    return [
        ResponseRow(index, time, step, response)
        for step, (index, time, turn) in enumerate(steps)
        for response in turn.responses
    ]
