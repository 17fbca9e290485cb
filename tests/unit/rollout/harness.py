"""A rollout with scripted environments and a scripted policy. No Ray, no engine."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Text
from transformers import PreTrainedTokenizerFast

from hgpo_rllib.agent import AgentFactory, TokenRenderer
from hgpo_rllib.policy_server.types import Generation, Prompt
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import (
    Group,
    GroupPlayer,
    PlayedGroup,
    gather,
    merge_groups,
    play_in_pool,
)
from hgpo_rllib.rollout.policy_agent import PolicyAgent
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings

GOOD = "<think>.</think><action>wait</action>"
Fault = Callable[[int, int], None]  # task, step → raises an error or sleeps


class CountingEnv(gym.Env):
    """An environment that ends after as many steps as its task's number, and shows the step."""

    observation_space = action_space = Text(100)

    def __init__(self, fault: Fault):
        self.fault = fault
        self.actions: list[str] = []
        self.failed = self.closed = False

    def close(self) -> None:
        self.closed = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        assert not self.failed
        self.task, self.time = seed, 0
        self.actions.clear()
        return self._see()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.failed = True
        self.fault(self.task, self.time)
        self.failed = False
        self.actions.append(action)
        self.time += 1
        observation, info = self._see()
        return observation, float(self.time), self.time == self.task, False, info

    def _see(self) -> tuple[str, dict[str, Any]]:
        info = {"goal": "count", "admissible_actions": ["wait"], "won": self.time == self.task}
        return f"at {self.time} of {self.task}", info


class ScriptedPolicy:
    """A policy that responds with a function and records all prompts."""

    def __init__(self, respond: Callable[[Prompt], Generation]):
        self.respond = respond
        self.asked: list[Prompt] = []

    async def generate(self, prompt: Prompt) -> Generation:
        self.asked.append(prompt)
        await asyncio.sleep(0)
        return self.respond(prompt)


class RolloutHarness:
    """A rollout whose parts a test can replace."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.renderer = TokenRenderer(
            tokenizer,
            AgentSettings(prompt="alfworld_compact", memory_length=2),
        )
        self.thread = EnvThread(limit_s=60)
        self.envs: list[CountingEnv] = []
        self.fault: Fault = lambda task, step: None
        self.slots = 100
        self.policy = ScriptedPolicy(lambda prompt: self.response(GOOD))
        self.failures: Counter[str] = Counter()

    def response(self, text: str, finish_reason: str = "stop") -> Generation:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [self.tokenizer.eos_token_id] * (finish_reason == "stop")
        logp = -np.arange(len(ids), dtype=np.float32)
        return Generation(np.asarray(ids, np.int32), logp, "w:3", finish_reason, 0.1)

    def make(self) -> CountingEnv:
        self.envs.append(CountingEnv(lambda task, step: self.fault(task, step)))
        return self.envs[-1]

    def agent_factory(self) -> AgentFactory:
        return partial(PolicyAgent, self.policy, self.renderer)

    def play(self, tasks: list[int], size: int = 3) -> list[Trajectory]:
        pool = EnvPool(self.make, self.thread)
        slots = asyncio.Semaphore(self.slots)
        groups = [
            Group("train", task, f"0/train/{place}", size, 1.0) for place, task in enumerate(tasks)
        ]

        async def play(group: Group) -> PlayedGroup:
            player = GroupPlayer(partial(play_in_pool, self.agent_factory(), pool), 2, slots)
            try:
                return await player.play_group(group)
            finally:
                self.failures += player.failures

        async def play_all() -> list[PlayedGroup]:
            async with asyncio.timeout(30):
                return await gather([play(group) for group in groups])

        return merge_groups(asyncio.run(play_all())).trajectories
