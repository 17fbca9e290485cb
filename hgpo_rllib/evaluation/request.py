"""Convert the arguments of `hgpo evaluate` to a `Request`."""

import re
from pathlib import Path

from env_wrappers.files import check_name
from hgpo_rllib.advantages.estimators import HIPER
from hgpo_rllib.config import RunConfig, as_override, load_config
from hgpo_rllib.environments import environment_id, find_environment, short_names
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.evaluation.agents import MODEL_AGENTS, REFLEXION_TRIALS, agent_overrides
from hgpo_rllib.evaluation.chat import find_remote_model, is_url
from hgpo_rllib.evaluation.evaluate import Request
from hgpo_rllib.evaluation.models import EvaluatedModel, LocalModel
from hgpo_rllib.evaluation.plan import DEFAULT_SEEDS
from hgpo_rllib.evaluation.scripted import SCRIPTED
from hgpo_rllib.run.checkpoint import load_policy_config, run_file_of
from hgpo_rllib.run.inputs import check_engine
from hgpo_rllib.settings.env import EnvSettings

ONE_REPLICA = (
    "policy_server.num_replicas=1",
    "policy_server.max_replicas=null",
    "policy_server.colocate=false",
    "policy_server.weight_transport=object_store",
)
"""Several replicas return responses in random order; there is no learner to get weights from."""
_OVERRIDE = re.compile(r"[a-z_]+(\.\w+)*=")


def split_words(words: list[str]) -> tuple[str | None, list[str]]:
    """Split arguments into the model, or None, and the overrides."""
    if not words or _OVERRIDE.match(words[0]):
        return None, words
    return words[0], words[1:]


def make_request(
    words: list[str],
    env: str | None = None,
    split: str | None = None,
    agent: str = "hgpo",
    protocol: str = "full",
    data: Path | None = None,
    games: int | None = None,
    seeds: int | None = None,
    trials: int | None = None,
    name: str | None = None,
    output: Path | None = None,
) -> Request:
    """Check the arguments and fill in defaults.

    Raises:
        ConfigError: an argument is invalid.
        DataError: the environment's data are invalid.
    """
    model, overrides = split_words(words)
    if protocol not in ("full", "released"):
        raise ConfigError(f"--protocol {protocol}: choose full or released")
    if protocol == "released" and seeds is not None:
        raise ConfigError("--seeds: --protocol released uses fixed seeds: remove --seeds")
    if trials is not None and agent != "reflexion":
        raise ConfigError(f"--trials: only --agent reflexion has trials, not {agent}: remove it")
    if name is not None and not (model and is_url(model)):
        raise ConfigError("--name: only for a model behind a URL: remove it")
    config = settings_of(model, env, data, agent, overrides)
    environment = find_environment(config.env.env_id)
    split = split or environment.eval_split or config.evaluation.splits[0]
    check_name(split)
    config, split = environment.find_split(config, split)
    environment = find_environment(config.env.env_id)
    check_agent(agent, config.env)
    environment.check(config.without_learners(), split)  # without a gateway, which is not used
    evaluated: EvaluatedModel | None = None
    if agent in MODEL_AGENTS:
        temperature = config.evaluation.temperature
        at_url = is_url(str(model))
        evaluated = (
            find_remote_model(str(model), name, temperature) if at_url else LocalModel(config)
        )
    return Request(
        config=config,
        model=evaluated,
        agent=agent,
        split=split,
        kind="released" if protocol == "released" else "full",
        # The oracle and a human player get one: another would repeat the same episodes.
        seeds=seeds or (1 if agent in ("oracle", "human") else DEFAULT_SEEDS),
        games=games,
        trials=trials or REFLEXION_TRIALS,
        output=output,
        model_argument=model or "",
    )


def settings_of(
    model: str | None, env: str | None, data: Path | None, agent: str, overrides: list[str]
) -> RunConfig:
    """Return the settings of the run `model`, or default settings, adjusted to the agent.

    Raises:
        ConfigError: the environment is not specified, or the model does not exist.
    """
    if model is None and agent in MODEL_AGENTS:
        raise ConfigError(f"--agent {agent}: give a MODEL: a run, HuggingFace model or URL")
    run_file = run_file_of(model) if model and not is_url(model) else None
    has_settings = run_file is not None
    if model is not None and agent not in MODEL_AGENTS and not has_settings:
        raise ConfigError(
            f"{model} is not a run directory, and --agent {agent} uses no model: correct or drop it"
        )
    settings = load_config(run_file, [])
    env_id = environment_id(env) if env else settings.env.env_id
    if env is None and not has_settings:
        *names, last = short_names()
        raise ConfigError(f"--env: give {', '.join(names)} or {last}")
    same = has_settings and env_id == settings.env.env_id
    changes = [*ONE_REPLICA, *([] if same else new_environment(env_id))]
    if data is not None:
        changes.append(as_override("env.data", str(data)))
    of_agent = agent_overrides(agent, env_id, same)
    if of_agent and settings.algorithm.estimator == HIPER:
        # Its settings are refused for an agent without sub-goals. PPO takes the same critic.
        of_agent.append("algorithm.estimator=ppo")
    changes += [*of_agent, *overrides]
    if model is None or agent not in MODEL_AGENTS or is_url(model):
        return load_config(run_file, changes)
    config = load_policy_config(model, changes)
    check_length(config)
    check_engine(config.policy_server)
    return config


def check_agent(agent: str, env: EnvSettings) -> None:
    """Raise ConfigError unless `agent` is an agent, or one of the environment's players."""
    environment = find_environment(env.env_id)
    known = [*MODEL_AGENTS, *SCRIPTED, *environment.players(env)]
    if environment.oracle(env) is None:
        known.remove("oracle")
    if agent not in known:
        raise ConfigError(f"--agent {agent}: for {env.env_id} choose {', '.join(known)}")


def new_environment(env_id: str) -> list[str]:
    """Return overrides for an environment other than that of the model's run."""
    max_steps = find_environment(env_id).max_steps
    steps = [] if max_steps is None else [f"env.max_steps={max_steps}"]
    return [f"env.env_id={env_id}", "env.data=null", "env.options={}", *steps]


def check_length(config: RunConfig) -> None:
    """Raise ConfigError if prompt and response limits exceed the model's positions."""
    from hgpo_rllib.policy_server.openai_server import positions

    agent = config.agent
    needed = agent.max_prompt_tokens + agent.max_response_tokens
    limit = positions(str(config.model.model_path))
    if needed > limit:
        raise ConfigError(
            f"agent.max_prompt_tokens={agent.max_prompt_tokens} and "
            f"agent.max_response_tokens={agent.max_response_tokens} are more than the model's "
            f"{limit} positions: lower them"
        )
