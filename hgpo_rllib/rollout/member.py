"""One member's episode: look, ask the policy, act, and again. No Ray here."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent import Memory, StepAgent
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.environments import EnvPool

NO_TOKENS = np.zeros(0, np.int32)
NO_RESPONSE = Generation(NO_TOKENS, np.zeros(0, np.float32), "none", "stop", 0.0)


class Policy(Protocol):
    """Whatever answers prompts."""

    async def generate(self, prompt: Prompt) -> Generation:
        """The response to one prompt."""


@dataclass(frozen=True)
class Act:
    """What a player does at one turn, and how it came to that."""

    action: str
    """As sent to the environment."""
    is_valid: bool
    """The completion was well formed, and not cut at the limit of tokens."""
    completion: str = ""
    """The response as text."""
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: NO_TOKENS)
    prompt_truncated: bool = False
    """The prompt was too long and lost a part."""
    response: Generation = field(default_factory=lambda: NO_RESPONSE)
    request_s: float = 0.0
    """Seconds from the question to the answer."""
    prompt: str | None = None
    """As text, of who was not asked in token ids."""
    tokens: tuple[int, int] = (0, 0)
    """Of prompt and response."""


@dataclass(frozen=True)
class Step:
    """One turn: what was done, and what the environment said to it."""

    act: Act
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
    """One member's whole episode."""

    observation: str
    """The first one."""
    info: dict[str, Any]
    """Of the first observation."""
    steps: list[Step]
    earlier: tuple["Trial", ...] = ()
    """Episodes of the same task before it that were lost."""


@dataclass(frozen=True)
class Trial:
    """A lost episode, and what its player made of it."""

    trajectory: Trajectory
    reflection: Act


class Player(Protocol):
    """Plays one episode."""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Act:
        """What to do at an observation; `info` is the environment's."""


MakePlayer = Callable[[Mapping[str, Any]], Player]
"""The player of the episode that an info began."""


@dataclass(frozen=True)
class Question:
    """What an agent asks a policy at one turn."""

    goal: str
    """The task in words."""
    observation: str
    """Now."""
    admissible_actions: Sequence[str]
    """What the environment offers."""
    memory: Memory
    """Of the turns before."""
    seed: int
    """Of the response: see `Prompt`."""
    session: str
    """See `Prompt`."""


class Speaker(Protocol):
    """Puts an agent's questions to a policy."""

    async def answer(self, question: Question) -> Act:
        """What to do."""


class PolicySpeaker:
    """Asks in token ids."""

    def __init__(self, agent: StepAgent, policy: Policy):
        """The agent writes prompts and reads completions; the policy answers."""
        self._agent = agent
        self._policy = policy

    async def answer(self, question: Question) -> Act:
        """See `Speaker`.

        Raises:
            RequestFailedError: the policy refuses the prompt.
        """
        offered = question.admissible_actions
        prompt = self._agent.prompt(question.goal, question.observation, offered, question.memory)
        asked = time.perf_counter()
        response = await self._policy.generate(
            Prompt(prompt.token_ids, question.seed, question.session)
        )
        answered = time.perf_counter()
        completion, parsed = self._agent.read(response.token_ids.tolist(), offered)
        return Act(
            parsed.action,
            is_valid=parsed.is_valid and response.finish_reason != "length",
            completion=completion,
            prompt_ids=np.asarray(prompt.token_ids, np.int32),
            prompt_truncated=prompt.truncated,
            response=response,
            request_s=answered - asked,
            tokens=(len(prompt.token_ids), len(response.token_ids)),
        )


class SpeakingPlayer:
    """Asks at every turn, and remembers what it saw, said and did."""

    def __init__(
        self, speaker: Speaker, goal: str, group: str, name: str, lessons: Sequence[str] = ()
    ):
        """Begin an episode.

        Args:
            speaker: answers.
            goal: the task in words.
            group: names the group among all of a run; its members' prompts begin alike.
            name: of the episode in its group. The seed of each response is made from the two: an
                episode is the same whatever others play beside it.
            lessons: what earlier episodes of the task taught.
        """
        self._speaker = speaker
        self._goal = goal
        self._group = group
        self._key = f"{group}/{name}"
        self.memory = Memory(lessons=tuple(lessons))

    async def act(self, observation: str, info: Mapping[str, Any]) -> Act:
        """See `Player`."""
        seed = response_seed(self._key, len(self.memory.turns))
        offered = info["admissible_actions"]
        question = Question(self._goal, observation, offered, self.memory, seed, self._group)
        act = await self._speaker.answer(question)
        self.memory.add(observation, act.action, act.completion)
        return act


async def play_member(
    env: gym.Env, pool: EnvPool, task: int, group: str, name: str, speaker: Speaker
) -> Trajectory:
    """Play a task once, as a `SpeakingPlayer` does."""
    return await play_episode(
        env, pool, task, lambda info: SpeakingPlayer(speaker, info["goal"], group, name)
    )


async def play_episode(
    env: gym.Env, pool: EnvPool, task: int, make_player: MakePlayer
) -> Trajectory:
    """Play a task once.

    Args:
        env: taken from `pool`.
        pool: steps the environment.
        task: seed that the environment's reset makes the task from.
        make_player: whoever plays.

    Raises:
        EnvFailedError: the environment raises an error, or hangs.
        RequestFailedError: the policy refuses a prompt.
    """
    observation, info = await pool.call(env.reset, seed=task)
    trajectory, player = Trajectory(observation, info, []), make_player(info)
    ended = False
    while not ended:
        act = await player.act(observation, info)
        acted = time.perf_counter()
        observation, reward, terminated, truncated, info = await pool.call(env.step, act.action)
        ended = terminated or truncated
        env_s = time.perf_counter() - acted
        trajectory.steps.append(
            Step(act, observation, float(reward), terminated, truncated, info, env_s)
        )
    return trajectory


def response_seed(key: str, turn: int) -> int:
    """The seed of one response, in 0 … 2^63 - 1."""
    digest = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
