"""Baseline of the rollouts: all environments step together until the last episode ends.

As in the released code, every turn requests responses for all environments, including those whose
episode has ended, waits for the slowest response, and then steps the environments one by one.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from hgpo_rllib.agent import TokenRenderer
from hgpo_rllib.rollout.policy_agent import Policy, PolicyAgent


async def play_in_lock_step(
    envs: Sequence[gym.Env], tasks: Sequence[int], key: str, renderer: TokenRenderer, policy: Policy
) -> int:
    """Play ``tasks[i]`` in ``envs[i]`` in lock-step.

    Args:
        envs: one environment per episode.
        tasks: seed of each environment's reset.
        key: prefix of the seeds of responses.
        renderer: renders prompts and parses completions.
        policy: generates responses.

    Returns:
        Number of environment steps, without turns after the end of an episode.
    """
    seen: list[Any] = [env.reset(seed=task) for env, task in zip(envs, tasks, strict=True)]
    agents = [
        PolicyAgent(policy, renderer, info, f"{key}/{task}", str(index))
        for index, (task, (_, info)) in enumerate(zip(tasks, seen, strict=True))
    ]
    over, steps = [False] * len(agents), 0
    while not all(over):
        turns = await asyncio.gather(*(a.act(*last) for a, last in zip(agents, seen, strict=True)))
        for index, turn in enumerate(turns):
            if not over[index]:
                step: Any = envs[index].step(turn.action)
                observation, _, terminated, truncated, info = step
                seen[index], over[index] = (observation, info), terminated or truncated
                steps += 1
    return steps
