"""HGPO as an RLlib algorithm: `HGPOConfig().training(model_path=…).build_algo().train()`."""

import logging
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from pydantic import BaseModel
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)
from ray.rllib.utils.typing import StateDict
from ray.tune import PlacementGroupFactory

from hgpo_rllib import placement
from hgpo_rllib.advantages import diagnostics
from hgpo_rllib.advantages.estimators import CRITIC_OUTPUTS, TEACHERS, WITHOUT_STATES
from hgpo_rllib.config import RunConfig, parse_config
from hgpo_rllib.environments import with_absolute_paths
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.iteration import IterationResult
from hgpo_rllib.learner.batching import signal_columns, teacher_columns, token_columns
from hgpo_rllib.learner.data_parallel import check_healthy, on_learners, update
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.learner.module import LLMModule
from hgpo_rllib.metrics import METRICS
from hgpo_rllib.models import load_chat_tokenizer, save_model
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.rollout.actors import runner_actors
from hgpo_rllib.rollout.held_out import TaskCount, evaluate_splits
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.scoring import ScoredTrajectories, score, stale_rate
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.served_policy import check_served_policy
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.algorithm import AlgorithmSettings
from hgpo_rllib.settings.cluster import ClusterSettings
from hgpo_rllib.settings.env import EnvSettings
from hgpo_rllib.settings.evaluation import EvaluationSettings
from hgpo_rllib.settings.learner import LearnerSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import WEIGHT_TRANSPORTS, PolicyServerSettings
from hgpo_rllib.settings.rollout import RolloutSettings

logger = logging.getLogger(__name__)
SettingsT = TypeVar("SettingsT", bound=BaseModel)

# The fields of these sections are flat attributes of HGPOConfig, so that
# `training(weight_alpha=…)` and Tune's param_space work as for any RLlib algorithm.
FLAT_SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "agent": AgentSettings,
    "rollout": RolloutSettings,
    "policy_server": PolicyServerSettings,
    "algorithm": AlgorithmSettings,
    "learner": LearnerSettings,
}


class HGPOConfig(AlgorithmConfig):
    """RLlib config with the settings of run files and their defaults."""

    def __init__(self, algo_class: type[Algorithm] | None = None):
        super().__init__(algo_class=algo_class or HGPO)
        for section in FLAT_SECTIONS.values():
            for name, value in section():
                setattr(self, name, value)
        self.train_split = "train"
        self.eval_splits: list[str] = list(EvaluationSettings().splits)
        self.eval_episodes = EvaluationSettings().episodes
        self.eval_temperature = EvaluationSettings().temperature
        self.serve_prefix = "hgpo-policy"  # prefix of the application's name
        self.serve_app: str | None = None  # set by the algorithm: one application per run or trial
        self.env = EnvSettings().env_id
        self.env_runner_cls = HGPOEnvRunner
        # Learners and env runners use no connectors, so RLlib need not synchronize their states.
        self.add_default_connectors_to_learner_pipeline = False
        self.merge_env_runner_states = False
        self.broadcast_env_runner_states = False
        self.delay_between_env_runner_restarts_s = 1.0  # RLlib: 60 s
        self.env_runner_health_probe_timeout_s = 5.0  # of a ping of lost env runners; RLlib: 30 s
        self.custom_evaluation_function = evaluate_splits

    @override(AlgorithmConfig)
    def training(self, **settings: Any) -> Self:
        """Set fields of the flat sections or RLlib's own training settings."""
        own = {name for section in FLAT_SECTIONS.values() for name in section.model_fields}
        super().training(**{k: v for k, v in settings.items() if k not in own})
        for name in own & settings.keys():
            setattr(self, name, settings[name])
        return self

    def settings(self, section: type[SettingsT]) -> SettingsT:
        """Return one section with its current values, validated."""
        return section(**{name: getattr(self, name) for name in section.model_fields})

    @property
    def cluster(self) -> ClusterSettings:
        """The env runner and learner processes."""
        return ClusterSettings(
            num_env_runners=self.num_env_runners,
            env_runner_cpus=self.num_cpus_per_env_runner,
            num_learners=self.num_learners,
            learner_gpus=self.num_gpus_per_learner,
        )

    @property
    def prompt_memory_length(self) -> int:
        """Number of turns in a prompt: `memory_length`, or K (`context_length`) if it is None."""
        return self.context_length if self.memory_length is None else self.memory_length

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Check the combination of values; RLlib calls this before building."""
        super().validate()
        sections = {name: self.settings(section) for name, section in FLAT_SECTIONS.items()}
        parse_config(sections | {"cluster": self.cluster})  # checks that they fit together
        if self.model_path is None:
            raise ValueError("model_path is not set: HGPOConfig().training(model_path=…)")

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(
            module_class=LLMModule,
            model_config={
                "model_path": self.model_path,
                "serve_dtype": self.dtype,
                "weight_transport": WEIGHT_TRANSPORTS[self.weight_transport],
                "lora_rank": self.lora_rank,
                "lora_alpha": self.lora_alpha,
                "seed": self.seed or 0,
                "temperature": self.temperature,
                "entropy_gradient": self.entropy_coeff > 0,
                "compute_dtype": self.compute_dtype,
                "gradient_checkpointing": self.gradient_checkpointing,
                "compile": self.compile,
                "critic": self.critic,
                "critic_layers": self.critic_layers,
                "critic_outputs": CRITIC_OUTPUTS.get(self.estimator, 1),
            },
        )

    @override(AlgorithmConfig)
    def build_learner_group(self, **settings: Any) -> LearnerGroup:
        """Build the learners, with a part of a GPU each if they share it with replicas."""
        config = self.copy(copy_frozen=False)
        share = placement.learner_resources(self.cluster, self.settings(PolicyServerSettings))
        config.num_gpus_per_learner = share.get("GPU", 0)
        return AlgorithmConfig.build_learner_group(config, **settings)  # not this override again

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[HGPOLearner]:
        return HGPOLearner

    @classmethod
    def from_run_config(cls, run: RunConfig) -> Self:
        """Convert a run config; `run.env.data` and `run.model.model_path` must be set.

        Paths become absolute, because actors on a cluster run where its nodes were started.
        """
        config, run = cls(), with_absolute_paths(run)
        for name in FLAT_SECTIONS:
            config.training(**dict(getattr(run, name)))
        options = {"data": run.env.data, "max_steps": run.env.max_steps, **run.env.options}
        config.environment(run.env.env_id, env_config=options)
        config.train_split = run.env.train_split
        config.eval_splits = list(run.evaluation.splits)
        config.eval_episodes = run.evaluation.episodes
        config.eval_temperature = run.evaluation.temperature
        config.env_runners(
            num_env_runners=run.cluster.num_env_runners,
            num_cpus_per_env_runner=run.cluster.env_runner_cpus,
        )
        config.learners(
            num_learners=run.cluster.num_learners, num_gpus_per_learner=run.cluster.learner_gpus
        )
        config.debugging(seed=run.seed)
        return config


class HGPO(Algorithm):
    """Iterate: rollout with the policy server, HGPO advantages, update, weight sync."""

    config: HGPOConfig

    def __init__(self, config: HGPOConfig | dict | None = None, **kwargs: Any):
        self.last_iteration: IterationResult | None = None
        self.held_out_tasks: dict[str, list[TaskCount]] = {}  # of the latest evaluation, by split
        self._seconds: dict[str, float] = {}  # of the current iteration
        self._anchors_warned = False
        self._saving = False
        super().__init__(config, **kwargs)

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> HGPOConfig:
        return HGPOConfig()

    @classmethod
    @override(Algorithm)
    def default_resource_request(cls, config: HGPOConfig | dict) -> PlacementGroupFactory:
        """Return the bundles of a trial: its own process, env runners and learners."""
        settings = cls.get_default_config().update_from_dict(config)
        server = settings.settings(PolicyServerSettings)
        return PlacementGroupFactory(placement.trial_demand(settings.cluster, server).bundles)

    @override(Algorithm)
    def setup(self, config: HGPOConfig) -> None:
        """Start this run's policy server and RLlib's components."""
        if self._storage is None:  # outside of Tune, RLlib makes a folder in the home directory
            Path(self.logdir).rmdir()
        if self.config.memory_length is None:
            logger.warning(
                "prompts show as many turns as groups share, %d: set memory_length to keep prompts "
                "the same when context_length changes",
                self.config.prompt_memory_length,
            )
        load_chat_tokenizer(self.config.model_path)  # fail before any process starts
        server = self.config.settings(PolicyServerSettings)
        self.config = self.config.copy(copy_frozen=False)
        # Without a unique name, trials would share one policy server.
        self.config.serve_app = f"{self.config.serve_prefix}-{uuid.uuid4().hex[:8]}"
        self.config.freeze()
        try:
            if server.colocate:  # the learners have to be there first, see `placement`
                super().setup(self.config)
            model = self.config.settings(ModelSettings)
            agent = self.config.settings(AgentSettings)
            seed, app = self.config.seed or 0, self.config.serve_app
            self._server = PolicyServer(model, agent, server, seed, app)
            if not server.colocate:
                super().setup(self.config)
            self.env_runner.actors = runner_actors(self.env_runner_group)
        except BaseException as error:  # includes an interrupt while the engines start
            # The traceback references RLlib's half-built learner group, whose `__del__` calls Ray.
            # After `ray.shutdown()` this call would start a new Ray, so release the group now.
            traceback.clear_frames(error.__traceback__)
            if (runners := getattr(self, "env_runner_group", None)) is not None:
                runners.local_env_runner.stop()  # its thread would keep the process from ending
            self._stop_policy_server()
            if runners is None and isinstance(error, IndexError):  # RLlib asked it for its spaces
                raise RunStoppedError("the first env runner did not start: see above") from error
            raise

    @override(Algorithm)
    def training_step(self) -> None:
        """Run one iteration and store its results in `last_iteration`."""
        with self._phase(ENV_RUNNER_SAMPLING_TIMER, "rollout_wait_s"):
            played = self.env_runner.sample(num_groups=self.config.groups_per_iteration)
        self.metrics.aggregate([self.env_runner.get_metrics()], key=ENV_RUNNER_RESULTS)
        self._seconds["rollout_s"] = played.seconds
        stale = stale_rate(played.trajectories, self.env_runner.weights.version)
        if self.config.schedule == "one_step_off":
            self.env_runner.sample_ahead(self.config.groups_per_iteration)
        with self._phase(LEARNER_UPDATE_TIMER, "update_s"), self._learners_use_gpus():
            scored, statistics = self.learn(played.trajectories)
        self._seconds["update_s"] -= self._seconds["advantage_s"]
        with self._phase(SYNCH_WORKER_WEIGHTS_TIMER, "sync_s"):
            self.env_runner_group.sync_weights(
                from_worker_or_learner_group=self.learner_group, inference_only=True
            )
            probe = played.trajectories[0].turns[0].prompt_ids
            gap = check_served_policy(self.env_runner, self.learner_group, probe)
        self.metrics.log_value("served_learner_logp_gap", gap, window=1)
        self.last_iteration = IterationResult(
            scored=scored,
            statistics=statistics | {"served_learner_logp_gap": gap},
            seconds=self._seconds,
            stale_rate=stale,
            failures=played.failures,
        )
        self._seconds = {}

    @contextmanager
    def _learners_use_gpus(self) -> Iterator[None]:
        """Let learners use the memory of colocated engines, which sleep until the next request."""
        if self.config.colocate:
            self._server.sleep()
        yield
        # Engines on parts of the same GPUs allocate memory for long prompts, and to start again.
        if self.config.colocate or 0 < self.config.num_gpus_per_learner < 1:
            on_learners(self.learner_group, HGPOLearner.free_gpu_memory)

    @contextmanager
    def _phase(self, timer: str, name: str) -> Iterator[None]:
        """Time a block for RLlib (as a moving average) and for `last_iteration`."""
        start = time.perf_counter()
        with self.metrics.log_time((TIMERS, timer)):
            yield
        self._seconds[name] = time.perf_counter() - start

    def learn(self, trajectories: list[Trajectory]) -> tuple[ScoredTrajectories, dict[str, float]]:
        """Score trajectories and update the learners with them.

        Advantages are computed here, once for all learners. Before that, the learners compute the
        values of a critic, and the log-probabilities of a teacher.

        Returns:
            The scored trajectories, and diagnostics of the groups with the learner's metrics.
        """
        columns = token_columns(trajectories)
        values = None
        if self.config.critic != "none":
            values = on_learners(self.learner_group, HGPOLearner.values, columns)
        settings = self.config.settings(AlgorithmSettings)
        teacher = None
        if settings.estimator in TEACHERS:
            teacher_rows = teacher_columns(columns, self.env_runner.teacher_prompts(trajectories))
            teacher = on_learners(self.learner_group, HGPOLearner.token_logp, teacher_rows)
        with self._phase("advantages", "advantage_s"):
            scored = score(trajectories, settings, values, teacher)
        group_results = diagnostics.summary(
            scored.steps, scored.advantage, scored.levels, settings.estimator_settings()
        )
        self._check_anchors(scored)
        rows = columns | signal_columns(scored)
        results = on_learners(self.learner_group, update, rows, len(scored.steps))
        self.metrics.aggregate([results], key=LEARNER_RESULTS)
        self.metrics.log_dict(group_results, key=(LEARNER_RESULTS, DEFAULT_MODULE_ID), window=1)
        reported = self.metrics.peek((LEARNER_RESULTS, DEFAULT_MODULE_ID))
        return scored, group_results | {k: float(v) for k, v in reported.items() if k in METRICS}

    def _check_anchors(self, scored: ScoredTrajectories) -> None:
        """Log a warning, once, if comparisons by state are of no use to an estimator."""
        named = {self.config.estimator, *self.config.role_estimators.values()}
        problem = diagnostics.anchor_problem(scored.steps, scored.levels[0].size)
        if problem and not self._anchors_warned and named.difference(WITHOUT_STATES):
            self._anchors_warned = True
            logger.warning("algorithm.anchor=%s: %s", self.config.anchor, problem)

    def save_pretrained(self, path: str) -> None:
        """Write the current policy in HuggingFace format."""
        arrays = on_learners(self.learner_group, HGPOLearner.model_arrays)
        with warnings.catch_warnings(action="ignore"):  # arrays of Ray's store are read-only
            state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_model(self.config.model_path, state, path)

    @override(Algorithm)
    def save_to_path(self, *args: Any, **kwargs: Any) -> str:
        self._saving = True
        try:
            with self._learners_use_gpus():  # offloaded moments are loaded to be saved
                path: str = super().save_to_path(*args, **kwargs)
                check_healthy(self.learner_group)
        finally:
            self._saving = False
        return path

    @override(Algorithm)
    def restore_from_path(self, *args: Any, **kwargs: Any) -> None:
        with self._learners_use_gpus():  # the moments are loaded onto them
            super().restore_from_path(*args, **kwargs)
            check_healthy(self.learner_group)

    @override(Algorithm)
    def get_state(self, components=None, *, not_components=None, **kwargs: Any) -> StateDict:
        # RLlib asks only the first learner for its state, and gathering needs all of them together.
        wanted = self._check_component(COMPONENT_LEARNER_GROUP, components, not_components)
        if wanted and self.config.shard_parameters:
            on_learners(self.learner_group, HGPOLearner.gather_optimizer_state)
        if self._saving and wanted:
            # RLlib would bring the weights and the optimizer state here, and send them back to the
            # learner that writes them. Without a state, the learner takes its own.
            return {COMPONENT_LEARNER_GROUP: None}
        return super().get_state(components, not_components=not_components, **kwargs)

    @override(Algorithm)
    def cleanup(self) -> None:
        """Stop rollouts, this run's policy server and RLlib's components, and free the GPUs."""
        try:
            # Limited, because a learner replies only when its current update has ended.
            self.learner_group.foreach_learner(lambda x: x.policy.close(), timeout_seconds=5)
            self.env_runner.stop()  # RLlib stops it again, after the server that it needs
        finally:
            self._stop_policy_server()
            super().cleanup()

    def _stop_policy_server(self) -> None:
        if hasattr(self, "_server"):  # else the learners or the engines did not start
            self._server.stop()
