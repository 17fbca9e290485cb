"""The RLlib EnvRunner: play groups on one event loop with actions from the policy server."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import gymnasium as gym
import ray
from anyio import CancelScope
from anyio.from_thread import start_blocking_portal
from ray.actor import ActorHandle
from ray.exceptions import RayError
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
from hgpo_rllib.rollout.actors import RunnerActors
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, Group, PlayedGroup, Rollout, play_groups
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


class HGPOEnvRunner(EnvRunner, Checkpointable):
    """Play groups of episodes. Tasks are identified by number, weights by tag.

    The local runner of an algorithm decides what is played. It plays the groups itself, or lets
    `actors`, which are runners as well, play them.
    """

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
        self.actors: list[ActorHandle] = []
        """Runners that play the groups. Empty: this one does."""
        self._weights: WeightTag = STARTING_WEIGHTS
        self._weights_seq_no = 0
        self._finished: list[Trajectory] = []
        self._clients: dict[float, PolicyClient] = {}  # per temperature
        self._ahead: tuple[int, CancelScope, Future[Played]] | None = None
        self._stack = ExitStack()
        # Rollouts run on an event loop in another thread: the learner updates in the main thread
        # meanwhile, and Ray's event loop of an actor stays free for further calls.
        self._loop = self._stack.enter_context(start_blocking_portal(name="rollouts"))
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
            played = self._loop.call(self._play, self._next(num_groups))
        else:
            (_, _, ahead), self._ahead = self._ahead, None
            played = ahead.result()
        self._finished += played.trajectories
        return played

    def sample_ahead(self, num_groups: int) -> None:
        """Start the rollout that the next call of `rollout` returns."""
        first, scope = self._tasks.position, self._loop.call(CancelScope)
        groups = self._next(num_groups)

        async def play() -> Played:
            with scope:
                return await self._play(groups)
            raise asyncio.CancelledError

        self._ahead = first, scope, self._loop.start_task_soon(play)

    def _next(self, num_groups: int) -> list[Group]:
        """Return groups for the next tasks."""
        config, first = self.config, self._tasks.position
        tasks = self._tasks.take(num_groups)
        return self._groups(config.train_split, tasks, config.group_size, config.temperature, first)

    def play(
        self, split: str, tasks: list[int], group_size: int, temperature: float, first: int = 0
    ) -> list[Trajectory]:
        """Play each task of a split with one group; all groups run concurrently.

        Responses are seeded by the run's seed, the split and the number of the group: `first` (the
        number of groups played before) plus its index in `tasks`.
        """
        groups = self._groups(split, tasks, group_size, temperature, first)
        return self._loop.call(self._play, groups).trajectories

    def _groups(
        self, split: str, tasks: list[int], size: int, temperature: float, first: int
    ) -> list[Group]:
        seed = self.config.seed or 0
        return [
            Group(split, task, f"{seed}/{split}/{number}", size, temperature)
            for number, task in enumerate(tasks, first)
        ]

    async def _play(self, groups: Sequence[Group]) -> Played:
        """Play groups of one size and split."""
        start, limit = time.perf_counter(), self.config.max_concurrent_episodes
        if self.actors:
            outage = self.config.max_outage_s
            runners = RunnerActors(self.actors, groups[0].size, limit, outage)
            play = partial(runners.play, lambda: self._weights)
        else:
            play = partial(self._play_group, asyncio.Semaphore(limit))
        trajectories, failures = await play_groups(play, groups)
        counts = {name: failures[name] for name in FAILURES}
        return Played(trajectories, counts, time.perf_counter() - start)

    async def _play_group(self, slots: asyncio.Semaphore, group: Group) -> PlayedGroup:
        begin = self.begin_agent(self._client(group.temperature))
        rollout = Rollout(begin, self._pool(group.split), self.config.max_attempts, slots)
        return await rollout.group(group), rollout.failures

    # Because this method is `async`, Ray runs the methods of an actor on an event loop, so that it
    # accepts further groups and new weights while it plays.
    async def play_group(self, group: Group, weights: WeightTag, episodes: int) -> PlayedGroup:
        """Play a group as an actor of another runner; see `RunnerActors`."""
        self._use(weights)
        playing = self._loop.start_task_soon(self._play_group, asyncio.Semaphore(episodes), group)
        return await asyncio.wrap_future(playing)

    def _client(self, temperature: float) -> PolicyClient:
        """Return the client of all groups with this temperature, which batches their prompts."""
        if temperature not in self._clients:
            several = max(self.config.num_replicas, self.config.max_replicas or 0) > 1
            sampling = self.sampling(temperature)
            self._clients[temperature] = PolicyClient(
                self.replicas, sampling, self._weights, several
            )
        return self._clients[temperature]

    def _use(self, weights: WeightTag) -> None:
        """Sample further responses with `weights`, also those of episodes in progress."""
        self._weights = weights
        for client in tuple(self._clients.values()):
            client.weights = weights

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
        return self._loop.call(self.replicas.generate, prompts, sampling, weights)

    def prompts_in_flight(self) -> int:
        """Return the number of prompts without a response yet, with those of `actors`.

        Thread-safe.
        """
        count = sum(client.in_flight for client in tuple(self._clients.values()))
        if self.actors:
            requests = [actor.prompts_in_flight.remote() for actor in self.actors]
            ready, _ = ray.wait(requests, num_returns=len(requests), timeout=1)
            for request in ready:
                with suppress(RayError):  # the actor was lost
                    count += ray.get(request)
        return count

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
            self._use(module_state[DEFAULT_MODULE_ID]["weight_tag"])

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
        with suppress(RuntimeError):  # RLlib may stop a runner twice
            self._loop.call(self._loop.stop, True)
        self._stack.close()
        self._ahead = None
        self._use(STARTING_WEIGHTS)
        while self._pools:
            self._pools.popitem()[1].close()
        self._env_thread.close()

    def _give_up_ahead(self) -> None:
        if self._ahead is not None:
            (_, scope, ahead), self._ahead = self._ahead, None
            self._loop.call(scope.cancel)
            wait([ahead])
