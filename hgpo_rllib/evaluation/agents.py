"""The agents that ask a model: their settings, and how they play."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hgpo_rllib.agent import BeginAgent, BeginModelAgent, ReflexionAgent
from hgpo_rllib.config import AgentSettings, ConfigError
from hgpo_rllib.environments import find_environment, short_names
from hgpo_rllib.evaluation.scripted import SCRIPTED

KINDS = {
    "hgpo": ("full",),
    "vanilla": ("full",),
    "react": ("react",),
    "reflexion": ("react", "reflexion"),
}
"""The templates of `EnvironmentSpec.prompts` that an agent needs."""
AGENTS = (*KINDS, *SCRIPTED)
REFLEXION_TRIALS = 3
WHOLE_EPISODE = 1000  # turns; prompts that grow too long lose the oldest

MakeBegin = Callable[[AgentSettings], BeginModelAgent]
"""Agents of a model with these settings."""


def agent_overrides(agent: str, env_id: str, has_settings: bool) -> list[str]:
    """Settings that make the agent of that name, to be overridden by the user's.

    Args:
        agent: of `AGENTS`.
        env_id: of the environment.
        has_settings: the model comes with settings of a run, which `hgpo` keeps.

    Raises:
        ConfigError: there are no prompts of this agent for the environment.
    """
    if agent in SCRIPTED or (agent == "hgpo" and has_settings):
        return []
    prompts = find_environment(env_id).prompts
    for kind in KINDS[agent]:
        if kind not in prompts:
            raise ConfigError(
                f"--agent {agent}: there are prompts for {', '.join(short_names())} only, not for "
                f"{env_id}: evaluate a run of it with --agent hgpo"
            )
    if agent in ("react", "reflexion"):
        return [
            f"agent.prompt={prompts['react']}",
            f"agent.memory_length={WHOLE_EPISODE}",
            "agent.shorten_prompts=memory",
        ]
    memory = 0 if agent == "vanilla" else 2
    return [f"agent.prompt={prompts['full']}", f"agent.memory_length={memory}"]


def reflection_settings(agent: AgentSettings, env_id: str) -> AgentSettings:
    """The same agent when it looks back on an episode that it lost."""
    changes: dict[str, Any] = {
        "prompt": find_environment(env_id).prompts["reflexion"],
        "memory_length": WHOLE_EPISODE,
        "shorten_prompts": "memory",
    }
    return agent.model_copy(update=changes)


def begin_model_agent(
    agent: str, settings: AgentSettings, env_id: str, trials: int, model: MakeBegin
) -> BeginAgent:
    """How an agent of `KINDS` begins a task; `model`: see `MakeBegin`."""
    if agent != "reflexion":
        return model(settings)
    reflecting = model(reflection_settings(settings, env_id))
    return partial(ReflexionAgent, model(settings), reflecting, trials)
