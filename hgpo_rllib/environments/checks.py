"""Check environments and their settings before Ray starts.

docs/bring_your_own_environment.md explains each requirement to authors of environments.
"""

import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import gymnasium
import jinja2
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import Error as GymnasiumError
from pydantic import TypeAdapter, ValidationError

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.errors import DataError, describe_error, one_line
from hgpo_rllib.agent.memory import Turn
from hgpo_rllib.agent.renderer import FOLLOW_UP_VARIABLES, PROMPT_VARIABLES, TextRenderer
from hgpo_rllib.agent.templates import load_template, unknown_variables
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.env import EnvSettings

PAGE = "docs/bring_your_own_environment.md"
REQUIRED_INFO = {
    "goal": (str, "the task in words, for the prompt"),
    "admissible_actions": ((list, tuple), "the actions offered now, for the prompt"),
    "won": ((bool, np.bool_), "whether the goal is reached"),
    "game": (str, "the name of the task, unique in its split; standard errors are over games"),
    "task_type": (str, "the task type, by which success is reported"),
}
REQUIRED_STEP_INFO = {
    "inadmissible": ((bool, np.bool_), "whether the action just taken was not offered")
}
REQUIRED_STATE_INFO = {
    "state_hash": (Hashable, "the state as a hashable value, which algorithm.anchor=state compares")
}
_OWN_SETTING = {
    "data": "env.data",
    "split": "env.train_split and evaluation.splits",
    "max_steps": "env.max_steps",
}
"""Arguments of environments that are settings themselves, not options."""


def make_environment(settings: EnvSettings, split: str) -> gymnasium.Env:
    """Create the environment without Gymnasium's checker, which takes longer than the steps."""
    options = {"data": settings.data, "max_steps": settings.max_steps, **settings.options}
    return gymnasium.make(settings.env_id, disable_env_checker=True, split=split, **options)


# --- settings of a built-in environment -----------------------------------------------------------


def check_settings(config: RunConfig, split: str) -> gymnasium.Env:
    """Check prompt templates and options; return the environment, which has read its data.

    Raises:
        ConfigError, DataError: a setting is wrong, or data are missing or broken.
    """
    check_templates(config.agent)
    # With made-up values, because a reset loads a game, which can take seconds.
    _check_rendering(config.agent, "You are here.", {"goal": "Go.", "admissible_actions": ["go"]})
    check_options(config.env)
    try:
        env = make_environment(config.env, split)
    except (GymnasiumError, ImportError) as error:
        raise ConfigError(f"env.env_id: {one_line(error)}") from error
    except TypeError as error:  # a value that the environment cannot use
        raise ConfigError(f"env.options: {one_line(error)}") from error
    _check_curriculum(config, env)
    return env


def _check_curriculum(config: RunConfig, env: gymnasium.Env) -> None:
    """Raise ConfigError if a curriculum needs task types that the environment lacks."""
    if config.rollout.curriculum and not env.has_wrapper_attr("task_types"):
        raise ConfigError(
            f"rollout.curriculum: {config.env.env_id} has no task_types, the type of each task: "
            "set rollout.curriculum=false"
        )


def check_options(env: EnvSettings) -> None:
    """Raise ConfigError for an unknown environment option or one of the wrong type."""
    parameters = _parameters(env.env_id)
    known = [name for name in parameters if name not in _OWN_SETTING]
    check_reserved(env)
    for name, value in env.options.items():
        if name not in known:
            raise ConfigError(f"unknown option env.options.{name}; available: {', '.join(known)}")
        kind = parameters[name].annotation
        try:
            TypeAdapter(Any if kind is inspect.Parameter.empty else kind).validate_python(
                value, strict=True
            )
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"env.options.{name}: {reason.lower()} (got {value!r})") from error


def default_options(env_id: str) -> dict[str, Any]:
    """Return the default of each environment option; none if the environment is not installed."""
    try:
        parameters = _parameters(env_id)
    except (GymnasiumError, ImportError):
        return {}
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in _OWN_SETTING and parameter.default is not inspect.Parameter.empty
    }


def _parameters(env_id: str) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a registered environment."""
    entry_point = gymnasium.spec(env_id.rpartition(":")[2]).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert creator is not None, "registered with an entry point"
    return inspect.signature(creator).parameters


def check_reserved(env: EnvSettings) -> None:
    """Raise ConfigError for an environment option that has a setting of its own."""
    for name in env.options:
        if name in _OWN_SETTING:
            raise ConfigError(
                f"env.options.{name}: it is a setting of its own, see {_OWN_SETTING[name]}"
            )


def check_templates(agent: AgentSettings) -> None:
    """Raise ConfigError if a prompt template cannot be loaded or uses an unknown variable."""
    for setting, known in (
        ("prompt", PROMPT_VARIABLES),
        ("strategy_prompt", PROMPT_VARIABLES),
        ("follow_up_prompt", FOLLOW_UP_VARIABLES),
    ):
        name = getattr(agent, setting)
        if name is None:
            continue
        try:
            unknown = unknown_variables(load_template(name), known)
        except (OSError, ValueError, jinja2.TemplateError) as error:
            raise ConfigError(f"agent.{setting}: {one_line(error)}") from error
        if unknown:
            raise ConfigError(
                f"agent.{setting}: {name}: unknown variable {', '.join(unknown)}; available: "
                f"{', '.join(sorted(known))}"
            )


def check_no_strategies(config: RunConfig, what: str) -> None:
    """Raise ConfigError if the agent writes strategies, which `what` does not support."""
    if config.agent.strategy_prompt is not None:
        raise ConfigError(
            f"agent.strategy_prompt: {what} does not support strategies: add "
            "agent.strategy_prompt=null algorithm.role_estimators={}"
        )


# --- an environment written by the user -----------------------------------------------------------


def check_contract(config: RunConfig, split: str) -> None:
    """Create the environment, play one step of its first task, and check the results.

    Raises:
        ConfigError: a requirement is not met; the message names it and its purpose.
    """
    env_id, settings = config.env.env_id, config.env
    where = f"env.env_id: {env_id}, split {split!r}"
    check_reserved(settings)
    try:
        env = make_environment(settings, split)
    except (GymnasiumError, DataError) as error:
        raise ConfigError(f"env.env_id: {one_line(error)}") from error
    except Exception as error:
        options = sorted({"data", "max_steps", "split", *settings.options})
        raise ConfigError(
            f"{where}: it cannot be made with {options}: {describe_error(error)} ({PAGE})"
        ) from error
    try:
        _check_curriculum(config, env)
        observation, info = _play_a_step(env, config.algorithm.anchor == "state")
        if config.rollout.curriculum:
            _check_task_types(env, info)
    except DataError as error:
        raise ConfigError(f"{where}: {error} ({PAGE})") from error
    finally:
        env.close()
    _check_rendering(config.agent, observation, info)
    check_templates(config.agent)  # also the branches that this step has not rendered


def _check_rendering(agent: AgentSettings, observation: str, info: dict[str, Any]) -> None:
    """Raise ConfigError unless the templates can be loaded and rendered."""
    actions = info["admissible_actions"]
    given = (info["goal"], observation, actions, 1)
    first = AgentSettings(prompt=agent.prompt)
    history = [Turn(observation, actions[0])]
    setting = "prompt"
    try:
        TextRenderer(first).message(*given, history=history)
        if agent.strategy_prompt is not None:
            setting = "strategy_prompt"
            writing = AgentSettings(prompt=agent.strategy_prompt)
            TextRenderer(writing).message(info["goal"], observation, [], 0, [])
        setting = "follow_up_prompt"
        TextRenderer(agent).follow_up_message(*given)
    except Exception as error:  # filters and calls in a template can raise anything
        name = getattr(agent, setting)
        raise ConfigError(f"agent.{setting}: {name}: {describe_error(error)} ({PAGE})") from error


def _check_task_types(env: gymnasium.Env, info: dict[str, Any]) -> None:
    """Raise DataError unless `task_types` has one entry per task, for task 0 that of its info."""
    task_types, tasks = env.get_wrapper_attr("task_types"), env.get_wrapper_attr("num_tasks")
    if len(task_types) != tasks:
        raise DataError(f"task_types has {len(task_types)} task types, of {tasks} tasks")
    if task_types[0] != info["task_type"]:
        raise DataError(
            f"task 0 has the task_type {info['task_type']!r} in its info, and {task_types[0]!r} in "
            "task_types: rollout.curriculum needs the same"
        )


def _play_a_step(env: gymnasium.Env, reports_states: bool) -> tuple[str, dict[str, Any]]:
    """Play one step of the first task and check all results; return what the reset returned.

    With `reports_states`, every info needs a hash of the state.

    Raises:
        DataError: the environment does not meet a requirement; the message names it.
    """
    tasks = env.has_wrapper_attr("num_tasks") and env.get_wrapper_attr("num_tasks")
    if not isinstance(tasks, int) or tasks < 1:
        raise DataError("it has no num_tasks, the number of tasks of the split, 1 or more")
    required = REQUIRED_INFO | (REQUIRED_STATE_INFO if reports_states else {})
    reset = "reset(seed=0)"
    observation, info = _call(reset, 2, lambda: env.reset(seed=0), required)
    if not info["admissible_actions"]:
        raise DataError(f"'admissible_actions' in the info of {reset} is empty")
    for offered in info["admissible_actions"]:
        if not isinstance(offered, str) or offered != offered.strip().lower():
            raise DataError(
                f"'admissible_actions' in the info of {reset} has {offered!r}: give text in lower "
                "case without surrounding spaces, as agents write actions"
            )
    again, other = _call(reset, 2, lambda: env.reset(seed=0), required)
    if (again, other["goal"]) != (observation, info["goal"]):
        raise DataError(
            f"{reset} begins another task when it is called again: all members of a group play the "
            "task of one seed"
        )
    action = other["admissible_actions"][0]
    _call(f"step({action!r})", 5, lambda: env.step(action), required | REQUIRED_STEP_INFO)
    return observation, info


def _call(
    name: str, size: int, call: Callable[[], Any], required: dict[str, tuple[Any, str]]
) -> tuple[Any, ...]:
    """Call the environment; check the number of values, the observation and the info."""
    try:
        returned = call()
    except Exception as error:
        raise DataError(f"{name} raises {describe_error(error)}") from error
    if not isinstance(returned, tuple) or len(returned) != size:
        raise DataError(f"{name} must return {size} values, as in Gymnasium")
    observation, *_, info = returned
    if not isinstance(observation, str):
        kind = type(observation).__name__
        raise DataError(f"the observation of {name} must be text, not a {kind}")
    for key, (kind, use) in required.items():
        if not isinstance(info, dict) or key not in info:
            raise DataError(f"the info of {name} has no {key!r}: {use}")
        if not isinstance(info[key], kind):
            found = type(info[key]).__name__
            raise DataError(f"{key!r} in the info of {name} is a {found}: it must be {use}")
        if kind is Hashable:
            try:  # a tuple is an instance of Hashable, whatever it contains
                hash(info[key])
            except TypeError as error:
                text = f"{key!r} in the info of {name}: {error}: it must be {use}"
                raise DataError(text) from error
    return returned
