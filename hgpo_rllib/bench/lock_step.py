"""Baseline of the rollouts: all environments step together until the last episode ends.

As in the released code, every turn requests responses for all environments, including those whose
episode has ended, waits for the slowest response, and then steps the environments one by one.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from hgpo_rllib.agent import Memory, TokenRenderer, response_seed
from hgpo_rllib.policy_server.types import Prompt
from hgpo_rllib.rollout.policy_agent import Policy


class _Member:
    """One environment and its agent; it still gets responses after its episode ends."""

    def __init__(self, env: gym.Env, task: int):
        self.env = env
        self.observation, self.info = env.reset(seed=task)
        self.goal = self.info["goal"]
        self.memory = Memory()
        self.over = False

    def prompt(self, renderer: TokenRenderer) -> list[int]:
        admissible = self.info["admissible_actions"]
        return renderer.prompt(self.goal, self.observation, admissible, self.memory).token_ids

    def act(self, renderer: TokenRenderer, response_ids: Sequence[int]) -> None:
        _, parsed = renderer.read(response_ids, self.info["admissible_actions"])
        if self.over:
            return
        self.memory.add(self.observation, parsed.action)
        step: Any = self.env.step(parsed.action)
        self.observation, _, terminated, truncated, self.info = step
        self.over = terminated or truncated


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
    members = [_Member(env, task) for env, task in zip(envs, tasks, strict=True)]
    steps = turn = 0
    while not all(member.over for member in members):
        prompts = [
            Prompt(member.prompt(renderer), response_seed(f"{key}/{index}", turn))
            for index, member in enumerate(members)
        ]
        responses = await asyncio.gather(*(policy.generate(prompt) for prompt in prompts))
        steps += sum(not member.over for member in members)
        for member, response in zip(members, responses, strict=True):
            member.act(renderer, response.token_ids.tolist())
        turn += 1
    return steps
