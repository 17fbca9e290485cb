"""The RLlib EnvRunner: play groups on one asyncio loop with actions from the policy server."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    EPISODE_LEN_MEAN,
    EPISODE_RETURN_MEAN,
    NUM_ENV_STEPS_SAMPLED,
    NUM_EPISODES,
    WEIGHTS_SEQ_NO,
)

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from hgpo_rllib.agent import BeginAgent, TokenRenderer
from hgpo_rllib.models import eos_token_ids, load_tokenizer
from hgpo_rllib.policy_server.client import PolicyClient
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, Rollout
from hgpo_rllib.rollout.policy_agent import Policy, PolicyAgent
from hgpo_rllib.rollout.restrictions import GrammarReader
from hgpo_rllib.rollout.rllib_episode import group_episodes
from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class Played:
    """Result of a rollout."""

    trajectories: list[Trajectory]
    """Trajectories ordered by group."""
    failures: dict[str, int]
    """Failure counts by the names in `FAILURES`."""
    seconds: float


# The runner has no `async def` methods: with one, Ray would make it an asyncio actor, whose running
# event loop forbids `asyncio.run`.


class HGPOEnvRunner(EnvRunner, Checkpointable):
    """Play groups of episodes. Tasks are identified by number, weights by tag."""

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any):
        """Load tokenizer and environments; called by RLlib."""
        super().__init__(config=config, **kwargs)
        self.module = None  # the policy lives in the policy server
        self._tokenizer = load_tokenizer(config.model_path)
        self.renderer = TokenRenderer(
            self._tokenizer,
            prompt=config.prompt,
            memory_length=config.prompt_memory_length,
            max_prompt_tokens=config.max_prompt_tokens,
            shorten=config.shorten_prompts,
            inadmissible_is_invalid=config.inadmissible_is_invalid,
            context=config.context,
            follow_up_prompt=config.follow_up_prompt,
        )
        self._eos = tuple(eos_token_ids(config.model_path, self._tokenizer))
        self.grammars = (
            GrammarReader(self._tokenizer, self._eos) if config.constrain_actions else None
        )
        self._env_thread = EnvThread(config.env_timeout_s)
        self._pools: dict[str, EnvPool] = {}  # per split
        self._weights: WeightTag = STARTING_WEIGHTS
        self._weights_seq_no = 0
        self._finished: list[Trajectory] = []
        self._thread = ThreadPoolExecutor(1, "rollout-ahead")
        self._under_way: list[tuple[Rollout, PolicyClient]] = []
        self._ahead: tuple[int, Future[Played]] | None = None
        first_env = self._pool(config.train_split).first
        self._spaces = (first_env.observation_space, first_env.action_space)
        self._tasks = TaskOrder(self.num_tasks(config.train_split), seed=config.seed or 0)

    @override(EnvRunner)
    def sample(self, *, num_episodes: int | None = None, **kwargs: Any) -> list[MultiAgentEpisode]:
        """Return the trajectories of `rollout` as RLlib episodes, one per group."""
        return group_episodes(self.rollout(num_episodes or 1).trajectories)

    def rollout(self, num_groups: int) -> Played:
        """Play `num_groups` groups on the next tasks of the train split.

        If `sample_ahead` has started a rollout, wait for that one instead.
        """
        if self._ahead is None:
            played = self._play(*self._next(num_groups))
        else:
            (_, ahead), self._ahead = self._ahead, None
            played = ahead.result()
        self._finished += played.trajectories
        return played

    def sample_ahead(self, num_groups: int) -> None:
        """Start the rollout that the next call of `rollout` returns, in another thread."""
        first = self._tasks.position
        self._ahead = first, self._thread.submit(self._play, *self._next(num_groups))

    def _next(self, num_groups: int) -> tuple[str, list[int], int, float, int]:
        """Return the arguments of `_play` for the next tasks."""
        config, first = self.config, self._tasks.position
        tasks = self._tasks.take(num_groups)
        return config.train_split, tasks, config.group_size, config.temperature, first

    def play(
        self, split: str, tasks: list[int], group_size: int, temperature: float, first: int = 0
    ) -> list[Trajectory]:
        """Play each task of a split with one group; all groups run concurrently.

        Responses are seeded by the run's seed, the split and the number of the group: `first` (the
        number of groups played before) plus its index in `tasks`.
        """
        return self._play(split, tasks, group_size, temperature, first).trajectories

    def _play(
        self, split: str, tasks: list[int], group_size: int, temperature: float, first: int
    ) -> Played:
        start = time.perf_counter()
        several = max(self.config.num_replicas, self.config.max_replicas or 0) > 1
        client = PolicyClient(self.replicas, self.sampling(temperature), self._weights, several)
        rollout = Rollout(
            self.begin_agent(client),
            self._pool(split),
            self.config.max_attempts,
            asyncio.Semaphore(self.config.max_concurrent_episodes),
        )
        seed = self.config.seed or 0
        names = [f"{seed}/{split}/{first + index}" for index in range(len(tasks))]
        self._under_way.append((rollout, client))
        try:
            trajectories = asyncio.run(rollout.groups(tasks, names, group_size))
        finally:
            self._under_way.remove((rollout, client))
        failures = {name: rollout.failures[name] for name in FAILURES}
        return Played(trajectories, failures, time.perf_counter() - start)

    def begin_agent(self, policy: Policy) -> BeginAgent:
        """Return the factory of agents. Override it for other agents, such as multi-role ones."""
        return partial(PolicyAgent, policy, self.renderer, grammars=self.grammars)

    def sampling(self, temperature: float) -> Sampling:
        """Return the sampling parameters of responses."""
        return Sampling(temperature, self.config.max_response_tokens, self._eos)

    @cached_property
    def replicas(self) -> Replicas:
        """Replicas of the policy server."""
        return Replicas.of(self.config.serve_app, self.config.max_outage_s)

    def ask(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """Return the policy server's responses to prompts outside of episodes."""
        return asyncio.run(self.replicas.generate(prompts, sampling, weights))

    @property
    def prompts_in_flight(self) -> int:
        """Number of prompts without a response yet. Thread-safe."""
        return sum(client.in_flight for _, client in tuple(self._under_way))

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split."""
        return self._pool(split).first.get_wrapper_attr("num_tasks")

    def _pool(self, split: str) -> EnvPool:
        if split not in self._pools:
            options = {"split": split, **self.config.env_config}
            make = partial(gym.make, self.config.env, disable_env_checker=True, **options)
            self._pools[split] = EnvPool(make, self._env_thread)
        return self._pools[split]

    @override(EnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        """Return RLlib's metrics of the episodes sampled since the last call."""
        window = self.config.groups_per_iteration * self.config.group_size
        for trajectory in self._finished:
            for name, count in ((NUM_EPISODES, 1), (NUM_ENV_STEPS_SAMPLED, len(trajectory))):
                self.metrics.log_value(name, count, reduce="sum")
                self.metrics.log_value(f"{name}_lifetime", count, reduce="lifetime_sum")
            self.metrics.log_value("success_rate", float(trajectory.won), window=window)
            self.metrics.log_value(EPISODE_RETURN_MEAN, trajectory.episode_return, window=window)
            self.metrics.log_value(EPISODE_LEN_MEAN, len(trajectory), window=window)
        self._finished.clear()
        return self.metrics.reduce()

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Return the spaces of a member and of the policy."""
        return {
            INPUT_ENV_SPACES: self._spaces,
            INPUT_ENV_SINGLE_SPACES: self._spaces,
            DEFAULT_MODULE_ID: self._spaces,
        }

    @override(Checkpointable)
    def get_state(self, components=None, *, not_components=None, **kwargs) -> dict[str, Any]:
        """Return the position in the task order; a restore replays a rollout in progress."""
        position = self._tasks.position if self._ahead is None else self._ahead[0]
        return {WEIGHTS_SEQ_NO: self._weights_seq_no, "task_position": position}

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        """Set the weight tag (RLlib's weight sync) or the position in the task order (restore)."""
        self._weights_seq_no = state.get(WEIGHTS_SEQ_NO, self._weights_seq_no)
        if "task_position" in state:
            self._give_up_ahead()
            self._tasks.position = state["task_position"]
        module_state = state.get(COMPONENT_RL_MODULE)
        if isinstance(module_state, ray.ObjectRef):
            module_state = ray.get(module_state)
        if module_state:
            self._weights = module_state[DEFAULT_MODULE_ID]["weight_tag"]
            for _, client in tuple(self._under_way):
                client.weights = self._weights

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Return the constructor arguments for checkpoints."""
        return (), {"config": self.config}

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """Do nothing in RLlib's health check: rollouts handle failures themselves."""

    @override(EnvRunner)
    def stop(self) -> None:
        """Cancel rollouts in progress, close the environments and release the weights."""
        self._give_up_ahead()
        self._thread.shutdown()
        self._weights = STARTING_WEIGHTS
        while self._pools:  # RLlib may stop a runner twice
            self._pools.popitem()[1].close()
        self._env_thread.close()

    def _give_up_ahead(self) -> None:
        if self._ahead is None:
            return
        (_, ahead), self._ahead = self._ahead, None
        while not ahead.done():  # repeat: until its loop runs, there is nothing to cancel
            for rollout, _ in tuple(self._under_way):
                rollout.cancel()
            wait([ahead], timeout=0.1)
