"""One episode of one group member: what agents play, and all that is computed from it."""

from dataclasses import dataclass
from typing import Any

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
    earlier: tuple["Trial", ...] = ()
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
class Trial:
    """A lost episode, and what its agent made of it."""

    trajectory: Trajectory
    reflection: Turn
