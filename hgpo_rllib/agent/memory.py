"""What an agent does at one turn, and what it remembers of its episode."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_TOKENS = np.zeros(0, np.int32)
NO_LOGP = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Span:
    """A part of a response with an advantage of its own: tokens `start` to `end`, without it."""

    start: int
    end: int
    role: str
    """Whose advantage it gets, see `algorithm.role_estimators`."""


@dataclass(frozen=True)
class Turn:
    """What an agent saw and did at one turn, and how it came to that.

    Agents that ask no model leave everything but observation and action at its default.

    Raises:
        ValueError: a span that is not in the response.
    """

    observation: str
    """What the agent saw before it acted."""
    action: str
    """As sent to the environment."""
    completion: str = ""
    """The whole response as text."""
    number: int = 1
    """Counted from 1 over the whole episode."""
    is_valid: bool = True
    """The completion was well formed, and not cut at the limit of tokens."""
    prompt: str | None = None
    """As text, of a model that was not asked in token ids."""
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: NO_TOKENS)
    prompt_truncated: bool = False
    """The prompt was too long and lost a part."""
    response_ids: NDArray[np.int32] = field(default_factory=lambda: NO_TOKENS)
    response_truncated: bool = False
    """The response ended at the limit of tokens."""
    behaviour_logp: NDArray[np.float32] = field(default_factory=lambda: NO_LOGP)
    """The engine's log-probability of each response token."""
    weight_version: str = "none"
    """Weights that drew the response, the last ones where it began under others."""
    weight_versions: tuple[tuple[str, int], ...] = ()
    """See `hgpo_rllib.policy_server.types.Generation.versions`."""
    tokens: tuple[int, int] = (0, 0)
    """Of prompt and response."""
    request_s: float = 0.0
    """Seconds from the question to the answer."""
    engine_s: float = 0.0
    """The part of them that the engine took."""
    role: str = "agent"
    """Whose response this is, where an agent has several at one step of its environment."""
    spans: tuple[Span, ...] = ()
    """Parts of the response with advantages of their own. A token in several gets their sum, one in
    none 0. Empty: the whole response is one span of `role`."""
    preceding: tuple["Turn", ...] = ()
    """Responses at the same step of the environment before this one, which acts: a planner's."""

    def __post_init__(self) -> None:
        for span in self.spans:
            if not 0 <= span.start < span.end <= len(self.response_ids):
                raise ValueError(f"{span} is not in a response of {len(self.response_ids)} tokens")

    @property
    def responses(self) -> tuple["Turn", ...]:
        """All responses of this step, the acting one last."""
        return (*self.preceding, self)


@dataclass
class Memory:
    """All turns of one episode, in order, and what earlier episodes of its task taught."""

    turns: list[Turn] = field(default_factory=list)
    lessons: tuple[str, ...] = ()

    def add(self, observation: str, action: str, completion: str = "") -> None:
        """Append a turn."""
        self.turns.append(Turn(observation, action, completion, len(self.turns) + 1))

    def last(self, length: int) -> list[Turn]:
        """The last `length` turns, oldest first (fewer at the start of an episode)."""
        return self.turns[-length:] if length > 0 else []
