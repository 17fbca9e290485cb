"""What a user can get wrong, checked before Ray and torch are imported, which takes seconds."""

import os
import socket

import gymnasium
from gymnasium.error import Error as GymnasiumError
from transformers import AutoConfig

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.run.own_environment import check_own_environment
from hgpo_rllib.run.trackers import check_trackers
from hgpo_rllib.warmstart.domain import HAVE_DOMAINS, find_domain

LOOPBACK = "127.0.0.1"


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or DataError for a model, data, environment or tracker that is missing."""
    check_dashboard_port(config)
    check_trackers(config.tracking.trackers)
    if config.model.model_path is not None:
        check_model_path(config.model.model_path)
    if config.env.env_id not in HAVE_DOMAINS:
        if config.model.model_path is None:
            find_domain(config.env.env_id)  # says what is missing
        for split in dict.fromkeys([config.env.train_split, *config.evaluation.splits]):
            check_own_environment(config, split)
    elif config.env.data is not None:
        for split in dict.fromkeys([config.env.train_split, *config.evaluation.splits]):
            check_environment(config, split)


def check_environment(config: RunConfig, split: str) -> None:
    """Raise ConfigError or DataError unless the environment can be made."""
    env = config.env
    try:
        gymnasium.make(
            env.env_id, split=split, data=env.data, max_steps=env.max_steps, **env.options
        ).close()
    except (GymnasiumError, ImportError) as error:
        raise ConfigError(f"env.env_id: {' '.join(str(error).split())}") from error
    except TypeError as error:  # an argument that the environment does not have
        raise ConfigError(f"env.options: {' '.join(str(error).split())}") from error


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
