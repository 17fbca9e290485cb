"""One member's episode: look, ask the policy, act, and again. No Ray here."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hgpo_rllib.agent import Memory, StepAgent
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.environments import EnvPool


class Policy(Protocol):
    """Whatever answers prompts."""

    async def generate(self, prompt: Prompt) -> Generation:
        """The response to one prompt."""


@dataclass(frozen=True)
class Step:
    """One turn: what was asked, answered and done, and what the environment said to it."""

    prompt_ids: NDArray[np.int32]
    prompt_truncated: bool
    """The prompt was too long and lost a part."""
    response: Generation
    completion: str
    """The response as text."""
    action: str
    """As sent to the environment."""
    is_valid: bool
    """The completion was well formed, and not cut at the limit of tokens."""
    observation: str
    """What followed."""
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    """Of what followed."""
    request_s: float
    """Seconds from the question to the answer."""
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


async def play_member(
    env: gym.Env, pool: EnvPool, task: int, group: str, name: str, agent: StepAgent, policy: Policy
) -> Trajectory:
    """Play a task once.

    Args:
        env: taken from `pool`.
        pool: steps the environment.
        task: seed that the environment's reset makes the task from.
        group: names the group among all of a run; its members' prompts begin alike.
        name: of the episode in its group. The seed of each response is made from the two: an
            episode is the same whatever others play beside it.
        agent: writes prompts and reads completions.
        policy: answers.

    Raises:
        EnvFailedError: the environment raises an error, or hangs.
        RequestFailedError: the policy refuses a prompt.
    """
    observation, info = await pool.call(env.reset, seed=task)
    trajectory, memory, goal = Trajectory(observation, info, []), Memory(), info["goal"]
    ended = False
    while not ended:
        admissible = info["admissible_actions"]
        prompt = agent.prompt(goal, observation, admissible, memory)
        asked = time.perf_counter()
        seed = response_seed(f"{group}/{name}", len(trajectory.steps))
        response = await policy.generate(Prompt(prompt.token_ids, seed, group))
        answered = time.perf_counter()
        completion, parsed = agent.read(response.token_ids.tolist(), admissible)
        memory.add(observation, parsed.action)
        observation, reward, terminated, truncated, info = await pool.call(env.step, parsed.action)
        ended = terminated or truncated
        trajectory.steps.append(
            Step(
                prompt_ids=np.asarray(prompt.token_ids, np.int32),
                prompt_truncated=prompt.truncated,
                response=response,
                completion=completion,
                action=parsed.action,
                is_valid=parsed.is_valid and response.finish_reason != "length",
                observation=observation,
                reward=float(reward),
                terminated=terminated,
                truncated=truncated,
                info=info,
                request_s=answered - asked,
                env_s=time.perf_counter() - answered,
            )
        )
    return trajectory


def response_seed(key: str, turn: int) -> int:
    """The seed of one response, in 0 … 2^63 - 1."""
    digest = hashlib.blake2b(f"{key}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
