"""Check user input before Ray is started."""

import os
import re
import socket
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from env_wrappers.errors import DataError, one_line
from hgpo_rllib.advantages.estimators import TEACHERS
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.environments.checks import check_settings
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.jsonl import ALL
from hgpo_rllib.run.trackers import check_trackers
from hgpo_rllib.settings.policy_server import PolicyServerSettings

LOOPBACK = "127.0.0.1"
WEIGHTS = ("*.safetensors", "*.bin")
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
"""Files of a model other than its weights."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or DataError if a run with these settings could not start.

    The model, the data, the environment or a tracker is missing or invalid, a port is in use, a
    folder cannot be written, or vLLM is built for another device.
    """
    check_dashboard_port(config)
    if config.rollout.gateway_port is not None:
        from hgpo_rllib.rollout.gateway import listen  # imports Ray

        listen(config.rollout.gateway_host, config.rollout.gateway_port)[1].close()
    check_trackers(config.tracking.trackers)
    check_writable(config)
    check_files(config, look_up=True)
    if config.model.model_path is not None:
        from hgpo_rllib.models import load_chat_tokenizer  # imports torch

        load_chat_tokenizer(config.model.model_path)
    check_engine(config.policy_server)


def check_engine(server: PolicyServerSettings) -> None:
    """Raise ConfigError if the engine is vLLM, built for another device than that of `server`."""
    if server.engine == "vllm":
        from hgpo_rllib.policy_server import openai_server  # imports Ray

        openai_server.check_device(server, openai_server.vllm_is_for_cpu())


def existing_folder(path: str) -> Path:
    """Return `path`, or the closest of its parents that exists."""
    folder = Path(path).absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())


def check_writable(config: RunConfig) -> None:
    """Raise ConfigError if runs or generated data cannot be written."""
    for name in ("output", "cache"):
        folder = existing_folder(getattr(config, name))
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise ConfigError(f"{name}: {folder} is not a writable directory")


def check_files(config: RunConfig, look_up: bool = False) -> None:
    """Check model, prompt template, data and options; see `check_model` for `look_up`.

    Raises:
        ConfigError, DataError: something is missing or invalid.
    """
    if ALL in config.evaluation.splits and len(config.evaluation.splits) > 1:
        raise ConfigError(
            f"evaluation.splits: {ALL!r} is the name of all splits together: rename this split, "
            "or evaluate it alone"
        )
    environment = find_environment(config.env.env_id)
    if TEACHERS.get(config.algorithm.estimator) == "plan":
        environment.require_oracle(config.env)
    for name, part in environment.parts(config).items():
        try:
            _check_environment(part)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{name}: {error}" if name else str(error)) from error
    if config.model.model_path is not None:  # last: the hub can take long to answer
        check_model(config.model.model_path, look_up=look_up)


def _check_environment(config: RunConfig) -> None:
    """Check the environment, or one of a mixture."""
    environment = find_environment(config.env.env_id)
    if config.model.model_path is None:
        demonstrations = environment.require_generator()
        if config.agent.strategy_prompt is not None and not demonstrations.has_strategies:
            raise ConfigError(
                f"agent.strategy_prompt: the demonstrations of {config.env.env_id} have no "
                "strategies: name a model in model.model_path"
            )
    splits = list(dict.fromkeys([config.env.train_split, *config.evaluation.splits]))
    generator = environment.data_generator(config)
    if generator is None:
        for split in splits:
            environment.check(config, split)
        return
    with tempfile.TemporaryDirectory() as folder:  # a sample of the data that would be generated
        sample = Path(folder) / "data"
        generator.make_sample(config, sample)
        env = config.env.model_copy(update={"data": str(sample)})
        for split in splits:
            try:
                check_settings(config.model_copy(update={"env": env}), split).close()
            except DataError as error:
                text = str(error).replace(str(sample), "the generated data")
                raise ConfigError(f"env.data=null: {text}") from error


def check_model(model: str, option: str = "model.model_path", look_up: bool = True) -> None:
    """Raise ConfigError unless `model` is a HuggingFace directory, or the name of a model.

    Messages begin with `option`. Names are looked up on the hub only if `look_up`.
    """
    folder = Path(model)
    if folder.exists():
        for names in (("config.json",), ("tokenizer.json",), WEIGHTS):
            if not any(any(folder.glob(name)) for name in names):
                raise ConfigError(f"{option}: {model} holds no {' or '.join(names)}")
    # If the first part of a name is a folder, it is a wrong path.
    elif not _HUB_NAME.fullmatch(model) or folder.parent.is_dir():
        raise ConfigError(
            f"{option}: {model} does not exist: give a directory, or ORGANIZATION/NAME of a "
            "model on the hub"
        )
    elif not look_up:
        return
    try:
        AutoConfig.from_pretrained(model, trust_remote_code=False)  # null would ask on a terminal
    except Exception as error:  # transformers raises errors of many types for a bad file
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"{option}: {model} needs code of its own, which is not run: choose a model that "
                "transformers contains"
            ) from error
        raise ConfigError(
            f"{option}: {model} is not a HuggingFace directory or name ({one_line(error)})"
        ) from error
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "np"):  # reads the header and compares it with the file's size
                pass
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{option}: {file} is not a complete file of weights ({one_line(error)}): copy it "
                "again; a clone by git needs git lfs"
            ) from error


def check_dashboard_port(config: RunConfig) -> None:
    """Raise ConfigError if the dashboard port of a local Ray is not available on loopback."""
    port = config.cluster.dashboard_port
    if port is None or os.environ.get("RAY_ADDRESS"):
        return
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise ConfigError(
            f"cluster.dashboard_port: port {port} is in use; choose another, or null for none"
        ) from error
