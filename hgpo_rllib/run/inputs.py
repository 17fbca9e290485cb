"""What a user can get wrong, checked before Ray and torch are imported, which takes seconds."""

import inspect
import os
import re
import socket
import tempfile
from pathlib import Path

import gymnasium
import jinja2
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import Error as GymnasiumError
from pydantic import TypeAdapter, ValidationError
from transformers import AutoConfig

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.errors import DataError
from env_wrappers.files import read_json
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.config import ConfigError, EnvSettings, RunConfig
from hgpo_rllib.evaluation.games import ALFWORLD
from hgpo_rllib.run.own_environment import check_own_environment
from hgpo_rllib.run.trackers import check_trackers
from hgpo_rllib.warmstart.domain import HAVE_DOMAINS, find_domain

LOOPBACK = "127.0.0.1"
WEIGHTS = ("*.safetensors", "*.bin")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SETTINGS = ("data", "split", "max_steps")
"""Arguments of environments that are settings of their own."""


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or DataError for a model, data, environment or tracker that is missing."""
    check_dashboard_port(config)
    check_trackers(config.tracking.trackers)
    check_files(config)
    if config.model.model_path is not None and not Path(config.model.model_path).exists():
        check_model_path(config.model.model_path)


def check_files(config: RunConfig) -> None:
    """Check what can be checked on this machine alone: model, prompt template, data, options.

    Raises:
        ConfigError, DataError: something is missing or broken.
    """
    if config.model.model_path is not None:
        check_model_files(config.model.model_path)
    elif config.env.env_id not in HAVE_DOMAINS:
        find_domain(config.env.env_id)  # says what is missing
    splits = list(dict.fromkeys([config.env.train_split, *config.evaluation.splits]))
    if config.env.env_id not in HAVE_DOMAINS:
        for split in splits:
            check_own_environment(config, split)
        return
    check_template(config.agent.prompt)
    if config.env.data is None:
        check_generated_data(config, splits)
        return
    for split in splits:
        check_environment(config, split)


def check_generated_data(config: RunConfig, splits: list[str]) -> None:
    """Check options and splits against a sample of the data that a run would generate."""
    check_options(config.env)
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "data"
        find_domain(config.env.env_id).make_sample(config, sample)
        env = config.env.model_copy(update={"data": str(sample)})
        for split in splits:
            try:
                _make_environment(env, split).close()
            except DataError as error:
                text = str(error).replace(str(sample), "the generated data")
                raise ConfigError(f"env.data=null: {text}") from error


def check_environment(config: RunConfig, split: str) -> None:
    """Raise ConfigError or DataError unless the environment can be made and its data are sound."""
    if config.env.env_id in HAVE_DOMAINS:
        check_options(config.env)
    env = _make_environment(config.env, split)
    if config.env.env_id == ALFWORLD:
        games = [Path(game) for game in env.get_wrapper_attr("games")]
        check_games(games, config.env.options.get("trusted", False))
    env.close()


def check_games(games: list[Path], trusted: bool) -> None:
    """Raise DataError for the first ALFWorld game that is broken, or not to be trusted."""
    from env_wrappers.alfworld.check import check_game

    for game in games:
        fault = check_game(game, replay=False, trusted=trusted).fault
        if fault:
            raise DataError(f"{game} is broken: {fault}; `hgpo data check alfworld` names all")


def check_options(env: EnvSettings) -> None:
    """Raise ConfigError for an option that ALFWorld or WebShop lacks, or of a wrong type."""
    creator = load_env_creator(str(gymnasium.spec(env.env_id).entry_point))
    parameters = inspect.signature(creator).parameters
    known = [name for name in parameters if name not in _SETTINGS]
    for name, value in env.options.items():
        if name in _SETTINGS:
            raise ConfigError(f"env.options.{name}: it is a setting of its own, see env.{name}")
        if name not in known:
            raise ConfigError(f"unknown option env.options.{name}; known here: {', '.join(known)}")
        try:
            TypeAdapter(parameters[name].annotation).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"env.options.{name}: {reason.lower()} (got {value!r})") from error


def _make_environment(env: EnvSettings, split: str) -> gymnasium.Env:
    try:
        return gymnasium.make(
            env.env_id, split=split, data=env.data, max_steps=env.max_steps, **env.options
        )
    except (GymnasiumError, ImportError) as error:
        raise ConfigError(f"env.env_id: {' '.join(str(error).split())}") from error
    except TypeError as error:  # a value that the environment cannot use
        raise ConfigError(f"env.options: {' '.join(str(error).split())}") from error


def check_template(prompt: str) -> None:
    """Raise ConfigError unless a prompt template can be read."""
    try:
        load_template(prompt)
    except (OSError, ValueError, jinja2.TemplateError) as error:
        raise ConfigError(f"agent.prompt: {' '.join(str(error).split())}") from error


def check_model_files(model_path: str) -> None:
    """Raise ConfigError for a directory that holds no model, or a path where nothing is.

    A name on the hub is not looked up.
    """
    folder = Path(model_path)
    if not folder.exists():
        mistyped = Path(folder.parts[0]).is_dir()  # a path that begins with a directory
        if mistyped or not _HUB_NAME.fullmatch(model_path):
            raise ConfigError(
                f"model.model_path: {model_path} is not there: give a HuggingFace directory, or "
                "ORGANIZATION/NAME of a model on the hub"
            )
        return
    for names in (("config.json",), ("tokenizer.json",), WEIGHTS):
        if not any(any(folder.glob(name)) for name in names):
            raise ConfigError(f"model.model_path: {model_path} holds no {' or '.join(names)}")
    try:
        read_json(folder / "config.json")
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.model_path: {folder / 'config.json'}: {error}") from error
    check_model_path(model_path)


def check_model_path(model_path: str, given_as: str = "model.model_path") -> None:
    """Raise ConfigError unless `model_path` is a HuggingFace directory or a name that resolves."""
    try:
        AutoConfig.from_pretrained(model_path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{given_as}: {model_path} is no HuggingFace directory or name ({reason})"
        ) from error


def check_dashboard_port(config: RunConfig) -> None:
    """Raise ConfigError when the dashboard of a local Ray cannot have its port on loopback."""
    port = config.cluster.dashboard_port
    if port is None or "RAY_ADDRESS" in os.environ:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise ConfigError(
                f"cluster.dashboard_port: port {port} is in use; choose another, or null for none"
            ) from error
