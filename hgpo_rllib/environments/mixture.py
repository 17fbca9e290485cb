"""Mixtures: several environments in one run, with one policy."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from pydantic import Field, ValidationError

from hgpo_rllib.config import RunConfig, explain
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import check_no_strategies
from hgpo_rllib.environments.spec import EnvironmentSpec, Games, digest
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.section import Section
from hgpo_rllib.settings.env import EnvSettings

OPTION = "env.options.environments"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


class MixedEnvironment(Section):
    """An environment of a mixture."""

    env_id: str
    """Gymnasium id."""
    weight: float = Field(1.0, gt=0)
    """Share of the training groups, relative to the other weights."""
    data: str | None = None
    """As `env.data`."""
    options: dict[str, Any] = Field({})
    """As `env.options`."""
    max_steps: int | None = Field(None, ge=1)
    """At most `env.max_steps`; null: the same."""
    prompt: str | None = None
    """Template in place of `agent.prompt`."""
    memory_length: int | None = Field(None, ge=0)
    """In place of `agent.memory_length`."""


class Mixture(EnvironmentSpec):
    """See `EnvironmentSpec`. A split is "train" of all environments, or "NAME.SPLIT" of one."""

    def parts(self, config: RunConfig) -> dict[str, RunConfig]:
        """Return the settings of a run of each environment, by name; see `EnvironmentSpec`."""
        if config.env.data is not None:
            raise ConfigError(f"env.data: a mixture has none: set {OPTION}.NAME.data")
        check_no_strategies(config, "a mixture")
        mixed = _mixed(config.env)
        for split in config.evaluation.splits:
            if split.rpartition(".")[0] not in mixed:
                raise ConfigError(
                    f"evaluation.splits: {split!r} is of no environment in {OPTION}: give "
                    f"NAME.SPLIT, with a NAME of {', '.join(mixed)}"
                )
        return {name: _part(config, name, own) for name, own in mixed.items()}

    def with_data(self, config: RunConfig, find: Callable[[RunConfig], str | None]) -> RunConfig:
        """See `EnvironmentSpec`."""
        parts = self.parts(config).items()
        return _changed(config, {name: {"data": find(part)} for name, part in parts})

    def with_prompts(self, config: RunConfig, change: Callable[[str], str]) -> RunConfig:
        """See `EnvironmentSpec`."""
        mixed = _mixed(config.env).items()
        own = {name: part.prompt for name, part in mixed if part.prompt is not None}
        return _changed(config, {name: {"prompt": change(prompt)} for name, prompt in own.items()})

    def find_split(self, config: RunConfig, split: str) -> tuple[RunConfig, str]:
        """See `EnvironmentSpec`."""
        name, _, own = split.rpartition(".")
        parts = self.parts(config)
        if name not in parts:
            known = ", ".join(parts)
            raise ConfigError(
                f"{split!r} is not a split of one environment: give NAME.SPLIT, with a NAME of "
                f"{known}"
            )
        return parts[name], own

    def games(self, env: gym.Env, settings: EnvSettings, split: str) -> Games:
        """Return the games of all environments of the split, in the mixture's order."""
        mixed, own = _mixed(settings), split.rpartition(".")[2]
        games = {
            name: find_environment(mixed[name].env_id).games(
                part, _env_settings(settings, mixed[name]), own
            )
            for name, part in env.get_wrapper_attr("environments").items()
        }
        find = env.get_wrapper_attr("find")
        places = (find(task) for task in range(env.get_wrapper_attr("num_tasks")))
        names = tuple(f"{name}/{games[name].names[task]}" for name, task in places)
        hashes = [found.data_hash or "" for found in games.values()]
        return Games(names, digest("\n".join(hashes).encode()) if all(hashes) else None)


def _changed(config: RunConfig, changes: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """Return the settings with other settings of some of the mixture's environments."""
    given = config.env.options["environments"]
    environments = {name: {**own, **changes.get(name, {})} for name, own in given.items()}
    env = config.env.model_copy(update={"options": {"environments": environments}})
    return config.model_copy(update={"env": env})


def _mixed(settings: EnvSettings) -> dict[str, MixedEnvironment]:
    """Return the environments of the options.

    Raises:
        ConfigError: the options do not describe a mixture.
    """
    given = settings.options.get("environments")
    if settings.options.keys() - {"environments"} or not given or not isinstance(given, dict):
        raise ConfigError(
            f"{OPTION}: give a mixture's environments by name, and no other options of it"
        )
    mixed = {}
    for name, value in given.items():
        where = f"{OPTION}.{name}"
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ConfigError(f"{where}: a name has letters, digits, - and _ only")
        try:
            mixed[name] = MixedEnvironment.model_validate(value)
        except ValidationError as error:
            raise ConfigError(explain(error, MixedEnvironment, where)) from error
        own, limit = mixed[name].max_steps, settings.max_steps
        if own is not None and own > limit:
            raise ConfigError(
                f"{where}.max_steps={own} is above env.max_steps={limit}: raise env.max_steps"
            )
    return mixed


def _env_settings(settings: EnvSettings, mixed: MixedEnvironment) -> EnvSettings:
    return EnvSettings(
        env_id=mixed.env_id,
        data=mixed.data,
        options=mixed.options,
        max_steps=mixed.max_steps or settings.max_steps,
        train_split=settings.train_split.rpartition(".")[2],
    )


def _part(config: RunConfig, name: str, mixed: MixedEnvironment) -> RunConfig:
    """Return the settings of a run of one environment."""
    own = {"prompt": mixed.prompt, "memory_length": mixed.memory_length}
    agent = {key: value for key, value in own.items() if value is not None}
    owners = (split.rpartition(".") for split in config.evaluation.splits)
    splits = [split for owner, _, split in owners if owner == name]
    return config.model_copy(
        update={
            "env": _env_settings(config.env, mixed),
            "agent": config.agent.model_copy(update=agent),
            "evaluation": config.evaluation.model_copy(update={"splits": splits}),
        }
    )
