"""What the agent remembers: the turns of its episode, of which a prompt shows the last K."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Turn:
    """One past turn."""

    number: int
    """Counted from 1 over the whole episode."""
    observation: str
    """What the agent saw before it acted."""
    action: str
    """The action it sent to the environment."""
    completion: str = ""
    """All that it said."""


@dataclass
class Memory:
    """All turns of one episode, in order, and what earlier episodes of its task taught."""

    turns: list[Turn] = field(default_factory=list)
    lessons: tuple[str, ...] = ()

    def add(self, observation: str, action: str, completion: str = "") -> None:
        """Append a turn."""
        self.turns.append(Turn(len(self.turns) + 1, observation, action, completion))

    def last(self, length: int) -> list[Turn]:
        """The last `length` turns, oldest first (fewer at the start of an episode)."""
        return self.turns[-length:] if length > 0 else []
