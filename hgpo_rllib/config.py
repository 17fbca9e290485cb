"""Every setting of a run, typed, with its meaning; and how a YAML file becomes them.

A run file has the sections below, and may begin with ``extends: other.yaml``, a run file beside it
from which it takes what it does not say itself. ``section.key=value`` on the command line overrides
a field. `HGPOConfig` (algorithm.py) is the RLlib builder over the same fields.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from env_wrappers.files import check_name
from hgpo_rllib.advantages import EstimatorSettings, find_estimator
from hgpo_rllib.advantages.contexts import Contexts
from hgpo_rllib.advantages.groups import Normalize
from hgpo_rllib.run_files import read_run_file
from hgpo_rllib.section import ConfigError, Section, Seed
from hgpo_rllib.settings.learner import LearnerSettings, check_sharding
from hgpo_rllib.settings.policy_server import PolicyServerSettings

_ESTIMATOR = EstimatorSettings()


class EnvSettings(Section):
    """The task environment."""

    env_id: str = "hgpo/ALFWorld-v0"
    """Gymnasium id; the environment's observations and actions are text."""
    data: str | None = None
    """Directory of the environment's data; null: generate them as `games` or `store` says."""
    options: dict[str, Any] = {}
    """More options of the environment (ALFWorld: `task_types`, `trusted`; WebShop: `goals`, …)."""
    max_steps: int = Field(50, ge=1)
    """Steps after which an episode is truncated."""
    train_split: str = "train"
    """Split that training plays."""

    @field_validator("train_split")
    @classmethod
    def _split_is_a_name(cls, split: str) -> str:
        return check_name(split)


class GamesSettings(Section):
    """Generated ALFWorld games: the training data without a download, and for the warm start."""

    train: int = Field(240, ge=1)
    """Games in train."""
    valid_seen: int = Field(48, ge=0)
    """Held-out games in the scenes of train."""
    valid_unseen: int = Field(48, ge=0)
    """Held-out games in scenes that train never uses."""
    rooms: list[Literal["kitchen", "livingroom", "bedroom", "bathroom"]] = [
        "kitchen",
        "livingroom",
        "bedroom",
        "bathroom",
    ]
    """Room types to draw scenes from."""
    task_types: list[str] | None = None
    """Task families; null: all six."""
    max_receptacles: int = Field(60, ge=2)
    """Largest room, counted in receptacles."""
    seed: Seed = 0
    """Seed of the generator."""


class StoreSettings(Section):
    """A generated WebShop catalogue: the training data without a download, and for the warm start.

    Fields as in `env_wrappers.webshop.generator.CatalogueSpec`.
    """

    products: int = Field(400, ge=1)
    """Products; with an instruction each gives seven or eight goals."""
    seed: Seed = 0
    """Seed of the generator."""
    lookalikes: int = Field(3, ge=1, le=6)
    """Products of the same brand and kind: how closely titles have to be read."""


class WarmStartSettings(Section):
    """The pocket model: a small Qwen2 cloned from scripted demonstrations on generated tasks."""

    games: int = Field(480, ge=1)
    """Tasks that are demonstrated: of a set of their own, with the scenes or sizes of training."""
    demonstrations: int = Field(3, ge=1)
    """Demonstrations per task."""
    max_steps: int = Field(20, ge=1)
    """Demonstrations that are not won by then are dropped."""
    action_noise: float = Field(0.15, ge=0, le=1)
    """Probability that a perturbed action is executed; the label stays the expert's."""
    vocabulary: int = Field(1000, ge=300)
    """Size of the BPE vocabulary."""
    hidden_size: int = Field(96, ge=32, multiple_of=32)
    """Width, a multiple of 32: heads have 32 dimensions, the smallest that vLLM runs on a CPU."""
    layers: int = Field(3, ge=1)
    """Transformer layers."""
    optimizer_steps: int = Field(6000, ge=1)
    """Cloning steps of `batch_size` prompts."""
    batch_size: int = Field(16, ge=1)
    """Prompts per cloning step."""
    lr: float = Field(3e-3, gt=0)
    """Peak learning rate, decayed linearly."""
    prompt_loss: float = Field(1.0, ge=0)
    """Weight of predicting the prompt too, which teaches copying quickly."""
    seed: Seed = 0
    """Seed of demonstrations, initial weights and batches."""


class ModelSettings(Section):
    """The language model."""

    model_path: str | None = None
    """HuggingFace directory or name; null: the pocket model that `warm_start` describes."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the served weights (the learner keeps float32 master weights)."""
    lora_rank: int = Field(0, ge=0, le=512)
    """Rank of LoRA adapters on all linear layers; nothing else is trained then, and the frozen
    starting policy costs no memory. 0: all parameters are trained."""
    lora_alpha: int = Field(32, ge=1)
    """What adapters add is scaled by lora_alpha / lora_rank."""


class AgentSettings(Section):
    """How observations become prompts, and completions actions."""

    prompt: str = "alfworld_full"
    """Name of a template in hgpo_rllib/agent/prompts, or path of a jinja file."""
    memory_length: int | None = Field(None, ge=0)
    """(observation, action) pairs the prompt shows; null: as many as `algorithm.context_length`."""
    inadmissible_is_invalid: bool = False
    """Count a well-formed but inadmissible action as invalid too (the released code does not)."""
    max_prompt_tokens: int = Field(4096, ge=16)
    """Longer prompts are shortened."""
    shorten_prompts: Literal["beginning", "memory"] = "beginning"
    """What a prompt that is too long loses: its first tokens (the released code), or the oldest
    turns of its memory first."""
    max_response_tokens: int = Field(512, ge=1)
    """Generation limit of a turn."""


class RolloutSettings(Section):
    """What one iteration samples."""

    groups_per_iteration: int = Field(16, ge=1)
    """Tasks an iteration; each is played by a group."""
    group_size: int = Field(8, ge=2)
    """Members N that play one task from the same start."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; training uses the log-probabilities at this temperature."""
    schedule: Literal["synchronous", "one_step_off"] = "synchronous"
    """`synchronous`: one iteration's rollouts, then its update (the papers). `one_step_off`: the
    next rollouts go on during the update, so a part of their steps is one version old."""
    max_concurrent_episodes: int = Field(512, ge=1)
    """Episodes under way at the same time, each with an environment and at most one request."""
    env_timeout_s: float = Field(60, gt=0)
    """Seconds that a reset or step of an environment may take."""
    max_attempts: int = Field(2, ge=1)
    """Times that a member is played, when its environment fails or hangs or its prompt is refused,
    before its group goes on without it."""


class AlgorithmSettings(Section):
    """Returns and advantages. Which settings an estimator reads is in its docstring."""

    estimator: str = "hgpo"
    """Name of an estimator in hgpo_rllib/advantages/estimators.py."""
    anchor: Literal["observation", "state"] = "observation"
    """What identifies a state: the observation's text (the paper), or the environment's hash of
    the true state (`info["state_hash"]`)."""
    context_length: int = Field(_ESTIMATOR.context_length, ge=0)
    """K: groups share the state and 0..K states of history."""
    weight_alpha: float = Field(_ESTIMATOR.weight_alpha, ge=0)
    """Level k weighs (k + 1)^alpha."""
    normalize: Normalize = _ESTIMATOR.normalize
    """Divide by the group's standard deviation, or only subtract its mean."""
    contexts: Contexts = _ESTIMATOR.contexts
    """Levels of early steps, see `hgpo_rllib.advantages`."""
    step_weight: float = Field(_ESTIMATOR.step_weight, ge=0)
    """GiGPO's weight of its step-level part, omega."""
    gamma: float = Field(_ESTIMATOR.gamma, gt=0, le=1)
    """Discount."""
    gae_lambda: float = Field(_ESTIMATOR.gae_lambda, ge=0, le=1)
    """Lambda of PPO's generalised advantage estimation."""
    invalid_penalty: float = Field(0.1, ge=0)
    """Taken from the return of an invalid step, after discounting."""

    @field_validator("estimator")
    @classmethod
    def _known(cls, name: str) -> str:
        find_estimator(name)
        return name

    def estimator_settings(self) -> EstimatorSettings:
        """The part that estimators read."""
        return EstimatorSettings(
            **{field.name: getattr(self, field.name) for field in fields(EstimatorSettings)}
        )


def check_critic(algorithm: AlgorithmSettings, learner: LearnerSettings) -> None:
    """Raise a ValueError unless there is a critic where one is read, and nowhere else."""
    if algorithm.estimator == "ppo" and learner.critic == "none":
        raise ValueError(
            "algorithm.estimator=ppo needs a critic: set learner.critic=head or "
            "learner.critic=separate"
        )
    if algorithm.estimator != "ppo" and learner.critic != "none":
        raise ValueError(
            f"learner.critic={learner.critic} has values that algorithm.estimator="
            f"{algorithm.estimator} does not read: set learner.critic=none or "
            "algorithm.estimator=ppo"
        )


class EvaluationSettings(Section):
    """Held-out evaluation inside a run."""

    interval: int = Field(5, ge=0)
    """Iterations between evaluations; 0: only before and after training."""
    splits: list[str] = Field(["valid_seen", "valid_unseen"], min_length=1)
    """Splits to play."""
    episodes: int = Field(40, ge=1)
    """Episodes per split: its games in one fixed order, each once, then again."""
    temperature: float = Field(0.4, gt=0)
    """Sampling temperature."""

    @field_validator("splits")
    @classmethod
    def _splits_are_names(cls, splits: list[str]) -> list[str]:
        return [check_name(split) for split in splits]


class ClusterSettings(Section):
    """Ray."""

    num_learners: int = Field(0, ge=0)
    """Learner processes, which share out every mini-batch; 0: the main process learns itself."""
    learner_gpus: float = Field(0, ge=0, le=1)
    """GPUs of each learner; a fraction shares one with replicas."""
    dashboard_port: int | None = Field(None, ge=1, le=65535)
    """Port of the Ray dashboard on the loopback address; null: no dashboard."""


class TrackingSettings(Section):
    """Services for experiments, beside the run directory (docs/integrations.md)."""

    trackers: list[Literal["wandb", "mlflow"]] = []
    """Services that get all metrics, by Ray's integrations; what opens them is never a setting, but
    in the environment ($WANDB_API_KEY, $MLFLOW_TRACKING_TOKEN, …)."""
    project: str = "hgpo"
    """Project (W&B) or experiment (MLflow) that the run belongs to."""


class RunConfig(Section):
    """One training run."""

    name: str = "hgpo"
    """Run directories are `<output>/<name>-<time>`."""
    output: str = "runs"
    """Where run directories are made."""
    cache: str = "data"
    """Where generated games and warm-started models are kept for the next run."""
    seed: Seed = 0
    """Seed of task order, sampling and mini-batches."""
    iterations: int = Field(150, ge=1)
    """Training iterations."""
    minutes: float | None = Field(None, gt=0)
    """Stop training after this many minutes even if iterations are left; null: no limit."""
    checkpoint_interval: int = Field(1, ge=1)
    """Iterations between checkpoints to resume from; the last iteration writes one as well."""
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

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return check_name(name)

    @model_validator(mode="after")
    def _critic_has_its_use(self) -> Self:
        check_critic(self.algorithm, self.learner)
        return self

    @model_validator(mode="after")
    def _has_learners_to_share(self) -> Self:
        check_sharding(self.learner, self.cluster.num_learners, self.model.lora_rank)
        return self

    def without_learners(self) -> Self:
        """The same for commands that only ask the policy: nothing of a cluster is for learning."""
        cluster = self.cluster.model_copy(update={"num_learners": 0, "learner_gpus": 0.0})
        learner = self.learner.model_copy(update={"shard_parameters": False})
        return self.model_copy(update={"cluster": cluster, "learner": learner})

    @model_validator(mode="after")
    def _tie_memory(self) -> Self:
        """Write the tied memory length out, so that every file of a run says what prompts show."""
        if self.agent.memory_length is None:
            tied = self.agent.model_copy(update={"memory_length": self.algorithm.context_length})
            object.__setattr__(self, "agent", tied)
        return self


def load_config(path: Path | None, overrides: list[str]) -> RunConfig:
    """Read a run file (`read_run_file`), and apply ``section.key=value`` overrides.

    Without a run file the overrides change the defaults. Values of overrides are YAML.

    Raises:
        ConfigError: for a missing or malformed file, files that extend each other, an unknown key
            or a value out of range.
    """
    data = {} if path is None else read_run_file(path)
    for override in overrides:
        _apply(data, override)
    return parse_config(data)


def parse_config(data: dict[str, Any]) -> RunConfig:
    """Validate nested settings; raises ConfigError naming the first wrong key."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error


def save_config(config: RunConfig, path: Path) -> None:
    """Write the config as YAML that `load_config` reads back."""
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
        data[field] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{key}: {value!r} is not a YAML value") from error


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        message = first["msg"].lower().removeprefix("value error, ")
        if first["type"] == "value_error" and isinstance(first["input"], dict):  # of a section
            return f"{key}: {message}" if key else message
        return f"{key}: {message} (got {first['input']!r})"
    section: type[BaseModel] = RunConfig
    for part in first["loc"][:-1]:
        section = type(getattr(section(), str(part)))
    return f"unknown config key {key}; known here: {', '.join(section.model_fields)}"
