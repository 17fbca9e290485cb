"""One spec per environment, with what training and evaluation need beyond Gymnasium's API.

The environments registered here can be trained, evaluated and prepared by name. Other modules call
`find_environment` and do not compare names.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name

from env_wrappers.errors import describe_error
from env_wrappers.files import expand_home
from hgpo_rllib.agent.templates import PROMPTS
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.checks import PAGE
from hgpo_rllib.environments.spec import (
    DemonstrationGenerator,
    EnvironmentSpec,
    Games,
    OraclePlan,
    TaskGenerator,
)
from hgpo_rllib.errors import ConfigError

__all__ = [
    "DemonstrationGenerator",
    "EnvironmentSpec",
    "Games",
    "OraclePlan",
    "TaskGenerator",
    "environment_id",
    "find_environment",
    "register_environment",
    "short_names",
    "with_absolute_paths",
]

SPECS: dict[str, str | Callable[[str], EnvironmentSpec]] = {
    "hgpo/ALFWorld-v0": "hgpo_rllib.environments.alfworld:ALFWorld",
    "hgpo/WebShop-v0": "hgpo_rllib.environments.webshop:WebShop",
    "hgpo/TextCraft-v0": "hgpo_rllib.environments.textcraft:TextCraft",
    "hgpo/ScienceWorld-v0": "hgpo_rllib.environments.scienceworld:ScienceWorld",
}
"""Registered specs by Gymnasium id."""
WITHOUT_SHORT_NAME = {
    "hgpo/Mixture-v0": "hgpo_rllib.environments.mixture:Mixture",
    "hgpo/Client-v0": "hgpo_rllib.environments.client:Client",
}
"""Specs without a short name, because only a run file can describe these environments."""


def register_environment(env_id: str, spec: str | Callable[[str], EnvironmentSpec]) -> None:
    """Register the spec that `find_environment` returns for an id.

    Args:
        env_id: Gymnasium id, without a module prefix.
        spec: a subclass of `EnvironmentSpec`, or ``"module:Class"``, which is imported on first
            use because the engines of some environments take seconds to import.
    """
    SPECS[env_id] = spec


def find_environment(env_id: str) -> EnvironmentSpec:
    """Return the spec of a Gymnasium id, or a general `EnvironmentSpec` if none is registered.

    As in ``gymnasium.make``, an id can start with a module to import: ``my_env:Lost-v0``.

    Raises:
        ConfigError: the module cannot be imported.
    """
    module, _, bare = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"env.env_id: {env_id}: {error} (is its folder in PYTHONPATH? see {PAGE})"
        ) from error
    except Exception as error:  # user code can raise anything
        raise ConfigError(
            f"env.env_id: {env_id}: {module} cannot be imported: {describe_error(error)} ({PAGE})"
        ) from error
    spec = (WITHOUT_SHORT_NAME | SPECS).get(bare, EnvironmentSpec)
    if isinstance(spec, str):
        spec = resolve_name(spec)
    return spec(env_id)


def environment_id(word: str) -> str:
    """Return the id of a registered environment's short name; otherwise `word` itself."""
    return dict(zip(short_names(), SPECS, strict=True)).get(word, word)


def short_names() -> list[str]:
    """Return the registered environments' short names: ``alfworld`` for ``hgpo/ALFWorld-v0``."""
    return [EnvironmentSpec(env_id).name for env_id in SPECS]


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Make the paths of data, model and prompts absolute, for processes in other directories."""
    model = config.model.model_path
    if model is not None and Path(model).is_dir():  # else the name of a model on a hub
        model = str(Path(model).absolute())
    environment = find_environment(config.env.env_id)
    config = environment.with_data(
        config, lambda part: part.env.data and str(expand_home(part.env.data).absolute())
    )
    config = environment.with_prompts(config, _absolute_template)
    names = ("prompt", "strategy_prompt", "follow_up_prompt")
    templates = {name: getattr(config.agent, name) for name in names}
    paths = {name: _absolute_template(given) for name, given in templates.items() if given}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"model_path": model}),
            "agent": config.agent.model_copy(update=paths),
        }
    )


def _absolute_template(template: str) -> str:
    """Return the absolute path of a prompt template; one in `PROMPTS` keeps its name."""
    is_known = (PROMPTS / f"{template}.jinja").is_file()
    return template if is_known else str(Path(template).absolute())
