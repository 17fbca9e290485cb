"""Settings and construction of the agents that use a model."""

from functools import partial
from typing import Any

from hgpo_rllib.agent import AgentFactory, ReflexionAgent, with_strategies
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.models import Model

MODEL_AGENTS = {
    "hgpo": ("full",),
    "vanilla": ("full",),
    "react": ("react",),
    "reflexion": ("react", "reflexion"),
}
"""Agents with a model, and the templates of `EnvironmentSpec.prompts` that each needs."""
REFLEXION_TRIALS = 3
WHOLE_EPISODE = {"memory_length": 1000, "shorten_prompts": "memory", "context": "window"}
"""Settings that show all turns; the oldest are removed from prompts that are too long."""


def agent_overrides(agent: str, env_id: str, has_settings: bool) -> list[str]:
    """Return the settings of an agent as overrides, which the user's overrides follow.

    Agents that are not in `MODEL_AGENTS` have none; `hgpo` keeps those of a run (`has_settings`).

    Raises:
        ConfigError: the environment has no prompts for this agent.
    """
    if agent not in MODEL_AGENTS or (agent == "hgpo" and has_settings):
        return []
    prompts = find_environment(env_id).prompts
    if not set(MODEL_AGENTS[agent]) <= prompts.keys():
        raise ConfigError(
            f"--agent {agent}: there are no prompts for {env_id}: evaluate a run of it with "
            "--agent hgpo"
        )
    settings: dict[str, Any]
    if agent in ("react", "reflexion"):
        settings = {"prompt": prompts["react"]} | WHOLE_EPISODE
    else:
        memory = 0 if agent == "vanilla" else 2
        settings = {"prompt": prompts["full"], "memory_length": memory, "context": "window"}
    settings["subgoals"] = False
    return [f"agent.{key}={value}" for key, value in settings.items()]


def model_agent_factory(agent: str, config: RunConfig, trials: int, model: Model) -> AgentFactory:
    """Return the function that creates agents of a kind in `MODEL_AGENTS`, one per task."""
    make, strategy_prompt = model.agent_factory, config.agent.strategy_prompt
    if agent == "hgpo" and strategy_prompt is not None:
        writing = config.agent.model_copy(update={"prompt": strategy_prompt})
        return with_strategies(make(config.agent), make(writing), executions=1)
    if agent != "reflexion":
        return make(config.agent)
    prompt = find_environment(config.env.env_id).prompts["reflexion"]
    reflecting = make(config.agent.model_copy(update={"prompt": prompt} | WHOLE_EPISODE))
    return partial(ReflexionAgent, make(config.agent), reflecting, trials)
