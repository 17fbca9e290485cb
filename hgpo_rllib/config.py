"""Typed settings of a run, and how to load them from a YAML run file.

A run file has the sections below. With ``extends: other.yaml`` it inherits the settings of another
run file. ``section.key=value`` on the command line overrides a field. `HGPOConfig` (algorithm.py)
is the RLlib configuration with the same fields.
"""

import json
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from env_wrappers.files import write_atomically
from hgpo_rllib.advantages.estimators import NEEDS_CRITIC, TEACHERS
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run_files import parse_yaml, read_run_file
from hgpo_rllib.section import Folder, Name, Section, Seed
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import (
    AlgorithmSettings,
    check_critic,
    check_group_size,
    check_strategies,
    check_subgoals,
)
from hgpo_rllib.settings.cluster import ClusterSettings, check_gpus, check_transport
from hgpo_rllib.settings.env import EnvSettings
from hgpo_rllib.settings.evaluation import EvaluationSettings
from hgpo_rllib.settings.generated import GamesSettings, StoreSettings, WarmStartSettings
from hgpo_rllib.settings.learner import LearnerSettings, check_sharding
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import GPU_TRANSPORTS, PolicyServerSettings
from hgpo_rllib.settings.rollout import RolloutSettings
from hgpo_rllib.settings.tracking import TrackingSettings


def check_gateway(config: "RunConfig") -> None:
    """Raise a ValueError for settings that do not apply to episodes played by clients."""
    if config.rollout.gateway_port is None:
        return
    for possible, change in (
        (not config.cluster.num_env_runners, "cluster.num_env_runners=0"),
        (config.algorithm.anchor == "observation", "algorithm.anchor=observation"),
        (not config.agent.constrain_actions, "agent.constrain_actions=false"),
        (config.agent.strategy_prompt is None, "agent.strategy_prompt=null"),
        (not config.agent.subgoals, "agent.subgoals=false"),
    ):
        if not possible:
            raise ValueError(
                f"rollout.gateway_port has clients play the episodes, so {change} is needed"
            )


class RunConfig(Section):
    """One training run."""

    name: Name = "hgpo"
    """Name of the run. Its run directory is `<output>/<name>-<time>`."""
    output: Folder = "runs"
    """Parent directory of run directories."""
    cache: Folder = "data"
    """Directory for generated games, generated stores and pocket models, which later runs reuse."""
    seed: Seed = 0
    """Seed of task order, sampling and mini-batches."""
    iterations: int = Field(160, ge=1)
    """Number of training iterations."""
    minutes: float | None = Field(None, gt=0)
    """Stop training after this many minutes, even if iterations are left. null: no limit."""
    checkpoint_interval: int = Field(1, ge=1)
    """Number of iterations between checkpoints. The last iteration always writes one."""
    env: EnvSettings = EnvSettings()
    games: GamesSettings = GamesSettings()
    store: StoreSettings = StoreSettings()
    warm_start: WarmStartSettings = WarmStartSettings()
    model: ModelSettings = ModelSettings()
    agent: AgentSettings = AgentSettings()
    rollout: RolloutSettings = RolloutSettings()
    policy_server: PolicyServerSettings = PolicyServerSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    learner: LearnerSettings = LearnerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    cluster: ClusterSettings = ClusterSettings()
    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        check_critic(self.algorithm, self.learner)
        check_group_size(self.algorithm, self.rollout.group_size)
        check_strategies(self.agent, self.algorithm, self.rollout)
        check_subgoals(self.agent, self.algorithm)
        schedule, lora_rank = self.rollout.schedule, self.model.lora_rank
        check_gpus(self.cluster, self.policy_server, schedule)
        check_transport(self.cluster, self.policy_server, schedule, lora_rank)
        check_sharding(self.learner, self.cluster.num_learners)
        check_gateway(self)
        return self

    def without_learners(self) -> Self:
        """Return a copy for commands that only run inference, in the main process and replicas."""
        changes: dict[str, dict[str, Any]] = {
            "cluster": {"num_env_runners": 0, "num_learners": 0, "learner_gpus": 0.0},
            "learner": {"shard_parameters": False},
            "policy_server": {"colocate": False},
            "rollout": {"gateway_port": None},
        }
        if self.policy_server.weight_transport in GPU_TRANSPORTS:
            changes["policy_server"]["weight_transport"] = "object_store"
        if self.algorithm.estimator in (*NEEDS_CRITIC, *TEACHERS):
            changes["algorithm"] = {"estimator": "hgpo"}  # the learner computes what these read
        sections = {k: getattr(self, k).model_copy(update=v) for k, v in changes.items()}
        return self.model_copy(update=sections)

    @model_validator(mode="after")
    def _correct_stale_responses(self) -> Self:
        """Use truncated importance weights with old responses, unless the learner's are set."""
        set_by_user = {"old_logp", "importance_cap", "importance_mask"}
        can_be_old = self.rollout.schedule == "asynchronous" and self.rollout.max_staleness > 0
        if can_be_old and not set_by_user & self.learner.model_fields_set:
            changes = {"old_logp": "recomputed", "importance_cap": 2.0}
            object.__setattr__(self, "learner", self.learner.model_copy(update=changes))
        return self

    @model_validator(mode="after")
    def _importance_level_is_read(self) -> Self:
        level, learner = self.learner.importance_level, self.learner
        if level != "token" and learner.importance_cap is None and learner.importance_mask is None:
            raise ValueError(
                f"learner.importance_level={level} is that of learner.importance_cap and "
                "learner.importance_mask: set one of them with learner.old_logp=recomputed, or "
                "learner.importance_level=token"
            )
        return self

    @model_validator(mode="after")
    def _fill_in_memory_length(self) -> Self:
        """Replace a null memory length by its value, so that `config.yaml` records it."""
        if self.agent.memory_length is None:
            tied = self.agent.model_copy(update={"memory_length": self.algorithm.context_length})
            object.__setattr__(self, "agent", tied)
        return self


def load_config(path: Path | None, overrides: list[str]) -> RunConfig:
    """Read a run file (`read_run_file`) and apply ``section.key=value`` overrides.

    If `path` is None, the overrides apply to the defaults. The values of overrides are YAML.

    Raises:
        ConfigError: if the file is missing or malformed, files extend each other in a cycle, a key
            is unknown, or a value is out of range.
    """
    data = {} if path is None else read_run_file(path)
    for override in overrides:
        _apply(data, override)
    try:
        return parse_config(data)
    except ConfigError as error:
        if path is None or overrides:
            raise
        raise ConfigError(f"{path}: {error}") from error


def as_override(key: str, value: Any) -> str:
    """Return ``key=value`` for `load_config`; TypeError for values that JSON lacks, as dates."""
    json.dumps(value)
    return f"{key}={yaml.safe_dump(value, default_flow_style=True)}"


def parse_config(data: dict[str, Any]) -> RunConfig:
    """Validate nested settings.

    Raises:
        ConfigError: names the first wrong key.
    """
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, RunConfig)) from error


def save_config(config: RunConfig, path: Path) -> None:
    """Write the config as YAML that `load_config` can read."""
    write_atomically(path, yaml.safe_dump(config.model_dump(), sort_keys=False))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not an override: write section.key=value")
    *sections, field = key.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{key}: {section} is not a section")
    try:
        data[field] = parse_yaml(value)
    except ValueError as error:
        raise ConfigError(f"{key}: {value!r} is not a YAML value") from error


def explain(error: ValidationError, section: type[Section], place: str = "") -> str:
    """Return the first error of a section; `place` is the key of the section."""
    first = error.errors()[0]
    key = ".".join([place] * bool(place) + [str(part) for part in first["loc"]])
    if first["type"] != "extra_forbidden":
        message = first["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if first["type"] == "value_error" and isinstance(first["input"], dict):  # of a section
            return f"{key}: {message}" if key else message
        return f"{key}: {message} (got {first['input']!r})"
    for part in first["loc"][:-1]:
        section = type(getattr(section(), str(part)))
    return f"unknown config key {key}; available: {', '.join(section.model_fields)}"
