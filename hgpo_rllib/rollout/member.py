"""One member's episode: look, ask the policy, act, and again. No Ray here."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from hgpo_rllib.agent import Memory, StepAgent, Turn
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.environments import EnvPool
from hgpo_rllib.rollout.trajectory import Step, Trajectory


class Policy(Protocol):
    """Whatever answers prompts."""

    async def generate(self, prompt: Prompt) -> Generation:
        """The response to one prompt."""


class Player(Protocol):
    """Plays one episode."""

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
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

    async def answer(self, question: Question) -> Turn:
        """What to do."""


class PolicySpeaker:
    """Asks in token ids."""

    def __init__(self, agent: StepAgent, policy: Policy):
        """The agent writes prompts and reads completions; the policy answers."""
        self._agent = agent
        self._policy = policy

    async def answer(self, question: Question) -> Turn:
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
        truncated = response.finish_reason == "length"
        return Turn(
            question.observation,
            parsed.action,
            completion,
            number=len(question.memory.turns) + 1,
            is_valid=parsed.is_valid and not truncated,
            prompt_ids=np.asarray(prompt.token_ids, np.int32),
            prompt_truncated=prompt.truncated,
            response_ids=response.token_ids,
            response_truncated=truncated,
            behaviour_logp=response.logp,
            weight_version=response.version,
            weight_versions=response.versions,
            tokens=(len(prompt.token_ids), len(response.token_ids)),
            request_s=answered - asked,
            engine_s=response.engine_s,
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

    async def act(self, observation: str, info: Mapping[str, Any]) -> Turn:
        """See `Player`."""
        seed = response_seed(self._key, len(self.memory.turns))
        offered = info["admissible_actions"]
        question = Question(self._goal, observation, offered, self.memory, seed, self._group)
        turn = await self._speaker.answer(question)
        self.memory.turns.append(turn)
        return turn


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
    trajectory, player = Trajectory(info, []), make_player(info)
    ended = False
    while not ended:
        turn = await player.act(observation, info)
        acted = time.perf_counter()
        observation, reward, terminated, truncated, info = await pool.call(env.step, turn.action)
        ended = terminated or truncated
        env_s = time.perf_counter() - acted
        trajectory.steps.append(
            Step(turn, observation, float(reward), terminated, truncated, info, env_s)
        )
    return trajectory


def response_seed(key: str, turn: int) -> int:
    """The seed of one response, in 0 … 2^63 - 1."""
    digest = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
