"""Environments by their Gymnasium ids."""

import importlib
from collections.abc import Callable

from hgpo_rllib.config import ConfigError
from hgpo_rllib.environments.checks import PAGE, one_line
from hgpo_rllib.environments.spec import EnvironmentSpec

SPECS: dict[str, str | Callable[[str], EnvironmentSpec]] = {}
"""By Gymnasium id, as `register_environment` was told."""


def register_environment(env_id: str, spec: str | Callable[[str], EnvironmentSpec]) -> None:
    """Say what `find_environment` finds for an id.

    Args:
        env_id: Gymnasium id, without a module before it.
        spec: a subclass of `EnvironmentSpec`, or ``"module:Class"``, which is imported when the
            environment is first asked for: the engines of some take seconds to import.
    """
    SPECS[env_id] = spec


def find_environment(env_id: str) -> EnvironmentSpec:
    """The spec of a Gymnasium id; of one without a registered spec, the general `EnvironmentSpec`.

    As in ``gymnasium.make``, an id may begin with the module to import: ``my_env:Lost-v0``.

    Raises:
        ConfigError: that module cannot be imported.
    """
    module, _, bare = env_id.rpartition(":")
    if module:
        _import(module, env_id)
    spec = SPECS.get(bare, EnvironmentSpec)
    if isinstance(spec, str):
        source, _, name = spec.partition(":")
        spec = getattr(importlib.import_module(source), name)
    return spec(env_id)


def environment_id(word: str) -> str:
    """The id of a registered environment that is given by its short name; else the word itself."""
    return {_short_name(env_id): env_id for env_id in SPECS}.get(word, word)


def short_names() -> list[str]:
    """Of the registered environments: ``alfworld`` for ``hgpo/ALFWorld-v0``."""
    return [_short_name(env_id) for env_id in SPECS]


def _short_name(env_id: str) -> str:
    return EnvironmentSpec(env_id).name


def _import(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"env.env_id: {env_id}: {error} (is its folder in PYTHONPATH? see {PAGE})"
        ) from error
    except Exception as error:  # whatever the code of a user raises
        raise ConfigError(
            f"env.env_id: {env_id}: {module} cannot be imported: {one_line(error)} ({PAGE})"
        ) from error
