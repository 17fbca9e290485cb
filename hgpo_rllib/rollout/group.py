"""One group: N members of one task, each asking and stepping at its own pace."""

import asyncio
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from hgpo_rllib.agent import Memory, StepAgent
from hgpo_rllib.policy_server.client import PolicyClient
from hgpo_rllib.policy_server.types import Prompt

POLICY_ID = "policy"  # the one RLModule that all members share


def member_id(index: int) -> str:
    """RLlib agent id of a member."""
    return f"member_{index}"


def policy_of_member(agent_id: str, episode: MultiAgentEpisode | None = None, **kwargs: Any) -> str:
    """RLlib's agent-to-module mapping: every member acts with the shared policy."""
    return POLICY_ID


async def run_group(
    envs: Sequence[gym.Env], seed: int, agent: StepAgent, client: PolicyClient
) -> MultiAgentEpisode:
    """Play one task with as many members as there are environments.

    Members are RLlib agents ``member_0 …`` of one `MultiAgentEpisode` and step asynchronously:
    each event is one member's step. A finished member asks for nothing more.

    Every step stores, as extra model outputs: ``prompt_ids``, ``response_ids``,
    ``behaviour_logp`` (shape ``(response tokens,)``), ``weight_version``, ``completion``,
    ``action`` (as sent to the environment) and ``is_valid``. The step's anchor is its observation.
    """
    members = [member_id(i) for i in range(len(envs))]
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=policy_of_member)
    starts = [env.reset(seed=seed) for env in envs]
    episode.add_env_reset(
        observations={m: start[0] for m, start in zip(members, starts, strict=True)},
        infos={m: start[1] for m, start in zip(members, starts, strict=True)},
    )
    playing = set(members)

    async def play(member: str, env: gym.Env, observation: str, info: dict[str, Any]) -> None:
        memory, goal = Memory(), info["goal"]
        while member in playing:
            admissible = info["admissible_actions"]
            prompt_ids = agent.encode(agent.prompt(goal, observation, admissible, memory))
            response = await client.generate(Prompt(prompt_ids))
            completion, parsed = agent.read(response.token_ids.tolist(), admissible)
            memory.add(observation, parsed.action)
            observation, reward, terminated, truncated, info = env.step(parsed.action)
            if terminated or truncated:
                playing.discard(member)
            episode.add_env_step(
                observations={member: observation},
                actions={member: parsed.action},
                rewards={member: float(reward)},
                infos={member: info},
                terminateds={member: terminated, "__all__": not playing},
                truncateds={member: truncated, "__all__": False},
                extra_model_outputs={
                    member: {
                        "prompt_ids": np.asarray(prompt_ids, np.int32),
                        "response_ids": response.token_ids,
                        "behaviour_logp": response.logp,
                        "weight_version": response.version,
                        "completion": completion,
                        "action": parsed.action,
                        "is_valid": parsed.is_valid,
                    }
                },
            )

    await asyncio.gather(
        *(play(m, env, *start) for m, env, start in zip(members, envs, starts, strict=True))
    )
    return episode


async def run_groups(
    groups: Sequence[tuple[Sequence[gym.Env], int]], agent: StepAgent, client: PolicyClient
) -> list[MultiAgentEpisode]:
    """Play several groups concurrently: ``(environments, seed of the task)`` each."""
    return await asyncio.gather(*(run_group(envs, seed, agent, client) for envs, seed in groups))
