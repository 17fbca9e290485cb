"""Turns of an agent, and its memory of an episode."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent.parsing import find_blocks

NO_TOKENS = np.zeros(0, np.int32)
NO_LOGP = np.zeros(0, np.float32)
NO_SUBGOAL = "None"


@dataclass(frozen=True)
class Span:
    """Part of a response with its own advantage: tokens `start` to `end`, exclusive."""

    start: int
    end: int
    role: str
    """Role whose advantage these tokens get, see `algorithm.role_estimators`."""


@dataclass(frozen=True)
class Turn:
    """Observation, model response and action of an agent at one turn.

    Agents without a model set only observation and action.

    Raises:
        ValueError: a span is not inside the response.
    """

    observation: str
    """Observation before the action."""
    action: str
    """Action as sent to the environment."""
    completion: str = ""
    """Whole response as text."""
    number: int = 1
    """Number of the turn in the episode, from 1."""
    is_valid: bool = True
    """Whether the completion was well formed and ended before the token limit."""
    prompt: str | None = None
    """Prompt as text, in evaluations only; training records `prompt_ids`."""
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: NO_TOKENS)
    prompt_truncated: bool = False
    """Whether the prompt was too long and was shortened."""
    response_ids: NDArray[np.int32] = field(default_factory=lambda: NO_TOKENS)
    response_truncated: bool = False
    """Whether the response reached the token limit."""
    behavior_logp: NDArray[np.float32] = field(default_factory=lambda: NO_LOGP)
    """The engine's log-probability of each response token."""
    restrictions: NDArray[np.int32] | None = None
    """Tokens that a grammar permitted, see `GrammarReader.restrictions`; None without one."""
    weight_version: str = "none"
    """Version of the weights that sampled the response; the last one if they changed meanwhile."""
    weight_versions: tuple[tuple[str, int], ...] = ()
    """See `hgpo_rllib.policy_server.types.Generation.versions`."""
    tokens: tuple[int, int] = (0, 0)
    """Number of prompt tokens and of response tokens."""
    request_s: float = 0.0
    """Seconds from the request to the response."""
    engine_s: float = 0.0
    """Part of `request_s` spent in the engine."""
    role: str = "agent"
    """Role of the response, for agents with several responses per environment step."""
    spans: tuple[Span, ...] = ()
    """Parts of the response with their own advantages. A token in several spans gets their sum;
    a token in none gets 0. Empty: the whole response is one span of `role`."""
    preceding: tuple["Turn", ...] = ()
    """Earlier responses at the same environment step, such as a planner's; this one acts."""

    def __post_init__(self) -> None:
        for span in self.spans:
            if not 0 <= span.start < span.end <= len(self.response_ids):
                raise ValueError(f"{span} is not in a response of {len(self.response_ids)} tokens")

    @property
    def oldest_version(self) -> str:
        """Version of the weights that sampled the first token of the response."""
        return self.weight_versions[0][0] if self.weight_versions else self.weight_version

    @property
    def responses(self) -> tuple["Turn", ...]:
        """All responses at this step, the acting one last."""
        return (*self.preceding, self)


@dataclass
class Memory:
    """Turns of one episode, in order, and what else its prompts show."""

    turns: list[Turn] = field(default_factory=list)
    lessons: tuple[str, ...] = ()
    """Lessons from earlier episodes of the task."""
    strategy: str = ""
    """Strategy for the whole episode; empty without one."""

    def add(self, observation: str, action: str, completion: str = "") -> None:
        """Append a turn."""
        self.turns.append(Turn(observation, action, completion, len(self.turns) + 1))

    @property
    def subgoal(self) -> str:
        """Current sub-goal of an agent with `agent.subgoals`; ``None`` before the first."""
        for index, turn in reversed(list(enumerate(self.turns))):
            blocks = find_blocks(turn.completion)
            if blocks.switches or index == 0:
                return blocks.subgoal or NO_SUBGOAL
        return NO_SUBGOAL

    def last(self, length: int) -> list[Turn]:
        """Return the last `length` turns, oldest first (fewer at the start of an episode)."""
        return self.turns[-length:] if length > 0 else []
