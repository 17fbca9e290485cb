"""The RLlib EnvRunner: play groups on one event loop with actions from the policy server."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
import ray
from anyio.from_thread import start_blocking_portal
from numpy.typing import NDArray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    EPISODE_LEN_MEAN,
    EPISODE_RETURN_MEAN,
    NUM_ENV_STEPS_SAMPLED,
    NUM_EPISODES,
)

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from env_wrappers.spaces import AnyText
from hgpo_rllib.advantages.estimators import TEACHERS
from hgpo_rllib.agent import AgentFactory, TokenRenderer, with_strategies
from hgpo_rllib.environments import find_environment
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
from hgpo_rllib.rollout.curriculum import Curriculum
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.gateway import Gateway, listen
from hgpo_rllib.rollout.group import (
    FAILURES,
    Group,
    GroupPlayer,
    PlayedGroup,
    PlayMember,
    gather,
    merge_groups,
    play_in_pool,
)
from hgpo_rllib.rollout.policy_agent import Policy, PolicyAgent
from hgpo_rllib.rollout.restrictions import GrammarReader
from hgpo_rllib.rollout.sessions import Session, Sessions, play_session
from hgpo_rllib.rollout.stream import GroupStream, TimedGroup
from hgpo_rllib.rollout.tasks import TaskOrder
from hgpo_rllib.rollout.teacher import outcome_texts, plan_texts, teacher_prompts
from hgpo_rllib.rollout.trajectory import Trajectory, have_equal_returns, response_rows
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.env import EnvSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")
PlayGroup = Callable[[Group], Coroutine[Any, Any, PlayedGroup]]


class RolloutResult(NamedTuple):
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
        memory = {"memory_length": config.prompt_memory_length}
        agent = config.settings(AgentSettings).model_copy(update=memory)
        self.renderer = TokenRenderer(self._tokenizer, agent)
        self._strategy_renderer = None
        if agent.strategy_prompt is not None:
            writing = agent.model_copy(update={"prompt": agent.strategy_prompt})
            self._strategy_renderer = TokenRenderer(self._tokenizer, writing)
        self._eos = tuple(eos_token_ids(config.model_path, self._tokenizer))
        self.grammars = (
            GrammarReader(self._tokenizer, self._eos) if config.constrain_actions else None
        )
        self._env_thread = EnvThread(config.env_timeout_s)
        self._pools: dict[str, EnvPool] = {}  # per split
        self.actors: list[ActorHandle] = []
        """Runners that play the groups. Empty: this one does."""
        self.weights: WeightTag = STARTING_WEIGHTS  # of the next requests
        self._finished: list[Trajectory] = []
        self._clients: dict[float, PolicyClient] = {}  # per temperature
        self._versions = [STARTING_WEIGHTS.version]  # of weights, the current one last
        self._stream = GroupStream(self._play_training_group)
        self._gateway: Gateway | None = None
        self._stack = ExitStack()
        # Rollouts run on an event loop in another thread: the learner updates in the main thread
        # meanwhile, and Ray's event loop of an actor stays free for further calls.
        self._loop = self._stack.enter_context(start_blocking_portal(name="rollouts"))
        first_env = self._pool(config.train_split).first
        space = partial(getattr, first_env)  # with a default: a user's environment may lack spaces
        self._spaces = space("observation_space", AnyText()), space("action_space", AnyText())
        seed = config.seed or 0
        self._tasks = TaskOrder(self.num_tasks(config.train_split), seed)
        if config.curriculum:
            self._tasks = Curriculum(first_env.get_wrapper_attr("task_types"), seed)

    @override(EnvRunner)
    def sample(self, *, num_groups: int = 1, **kwargs: Any) -> RolloutResult:
        """Return `num_groups` groups of the train split, as `rollout.schedule` says.

        Groups in progress count towards `num_groups`. Groups that are too old are discarded, and up
        to `rollout.max_replaced_groups` whose members have equal returns.
        """
        asynchronous = self.config.schedule == "asynchronous"
        ahead = self.config.max_staleness * num_groups if asynchronous else 0
        budget = self.config.max_replaced_groups
        groups: list[TimedGroup] = []
        stale, replaced = list[TimedGroup](), list[TimedGroup]()
        while len(groups) < num_groups:
            missing = num_groups - len(groups)
            self._loop.call(self._stream.start, missing + ahead)
            taken = self._run(self._stream.take, missing, not asynchronous)
            for group in taken:
                if asynchronous and self._is_stale(group):
                    stale.append(group)
                elif len(replaced) < budget and have_equal_returns(group.played.trajectories):
                    replaced.append(group)
                else:
                    groups.append(group)
        groups.sort(key=lambda group: group.number)
        for group in sorted(groups + stale + replaced, key=lambda group: group.number):
            self._tasks.update(group.played.trajectories)
        trajectories, failures = merge_groups([group.played for group in groups])
        discarded = Counter(stale_groups=len(stale), replaced_groups=len(replaced))
        failures += sum((group.played.failures for group in stale + replaced), discarded)
        counts = {name: failures[name] for name in FAILURES}
        usable = groups + replaced
        seconds = max(group.ended for group in usable) - min(group.started for group in usable)
        self._finished += trajectories
        return RolloutResult(trajectories, counts, seconds)

    def _run(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Call a function on the event loop; an interrupt cancels it, so it can be repeated."""
        call = self._loop.start_task_soon(function, *arguments)
        try:
            return call.result()
        finally:
            call.cancel()  # does nothing if it is done

    def sample_ahead(self, num_groups: int) -> None:
        """Start the groups that the next call of `sample` returns."""
        self._loop.call(self._stream.start, num_groups)

    def _is_stale(self, group: TimedGroup) -> bool:
        usable = self._versions[-1 - self.config.max_staleness :]
        rows = response_rows(group.played.trajectories)
        return any(row.response.oldest_version not in usable for row in rows)

    async def _play_training_group(self, number: int) -> PlayedGroup:
        config, task = self.config, self._tasks.task(number)
        group = self._group(config.train_split, task, number, config.group_size, config.temperature)
        return await self._training_player(group)

    @cached_property
    def _training_player(self) -> PlayGroup:
        return self._player(self.config.group_size)

    def play(
        self, split: str, tasks: list[int], group_size: int, temperature: float, first: int = 0
    ) -> list[Trajectory]:
        """Play each task of a split with one group; all groups run concurrently.

        Responses are seeded by the run's seed, the split and the number of the group: `first` (the
        number of groups played before) plus its index in `tasks`.
        """
        play = self._player(group_size)
        groups = [
            play(self._group(split, task, number, group_size, temperature))
            for number, task in enumerate(tasks, first)
        ]
        return merge_groups(self._run(gather, groups)).trajectories

    def _group(self, split: str, task: int, number: int, size: int, temperature: float) -> Group:
        return Group(split, task, f"{self.config.seed or 0}/{split}/{number}", size, temperature)

    def _player(self, group_size: int) -> PlayGroup:
        """Return a function that plays groups, with a limit of their concurrent episodes."""
        limit = self.config.max_concurrent_episodes
        if self.actors:
            runners = RunnerActors(self.actors, self.replicas, group_size, limit)
            return partial(runners.play, lambda: self.weights)
        return partial(self._play_group, asyncio.Semaphore(limit))

    async def _play_group(self, slots: asyncio.Semaphore, group: Group) -> PlayedGroup:
        client, pool = self._client(group.temperature), self._pool(group.split)
        play: PlayMember
        if self.config.gateway_port is None:
            play = partial(play_in_pool, self.agent_factory(client), pool)
        else:
            sessions = (await self._open_gateway()).sessions
            make_session = partial(Session, client, self.renderer, temperature=group.temperature)
            play = partial(play_session, sessions, make_session, self.config.env_config, pool)
        return await GroupPlayer(play, self.config.max_attempts, slots).play_group(group)

    async def _open_gateway(self) -> Gateway:
        """Return the gateway; the first call starts it."""
        if self._gateway is None:
            config = self.config
            endpoint, listener = listen(config.gateway_host, config.gateway_port)
            self._gateway = Gateway(
                Sessions(config.session_timeout_s), config.max_response_tokens, endpoint.key
            )
            await self._gateway.start(listener)
            logger.warning("the gateway waits for clients at %s", endpoint.url)
        return self._gateway

    # Because this method is `async`, Ray runs the methods of an actor on an event loop, so that it
    # accepts further groups and new weights while it plays.
    async def play_group(self, group: Group, weights: WeightTag, episodes: int) -> PlayedGroup:
        """Play a group as an actor of another runner; see `RunnerActors`."""
        if weights.replaces(self.weights):  # a sync of newer weights may have overtaken the call
            self.use_weights(weights)
        playing = self._loop.start_task_soon(self._play_group, asyncio.Semaphore(episodes), group)
        return await asyncio.wrap_future(playing)

    def _client(self, temperature: float) -> PolicyClient:
        """Return the client of all groups with this temperature, which batches their prompts."""
        if temperature not in self._clients:
            by_session = self.config.settings(PolicyServerSettings).most_replicas > 1
            sampling = self.sampling(temperature)
            self._clients[temperature] = PolicyClient(
                self.replicas, sampling, self.weights, by_session
            )
        return self._clients[temperature]

    def use_weights(self, weights: WeightTag) -> None:
        """Sample further responses with `weights`, also those of episodes in progress."""
        self.weights = weights
        if weights.version not in self._versions[-1:]:
            self._versions.append(weights.version)
        for client in tuple(self._clients.values()):
            client.weights = weights

    def agent_factory(self, policy: Policy) -> AgentFactory:
        """Return the factory of the agents of a group.

        Override it for other agents, such as multi-role ones.
        """
        playing = partial(PolicyAgent, policy, self.renderer, grammars=self.grammars)
        if self._strategy_renderer is None:
            return playing
        writing = partial(PolicyAgent, policy, self._strategy_renderer)
        return with_strategies(playing, writing, self.config.group_size // self.config.strategies)

    def teacher_prompts(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.int32]]:
        """Return the prompts in which the estimator's teacher reads all responses."""
        if TEACHERS[self.config.estimator] == "outcome":
            texts = outcome_texts(trajectories)
        else:
            options = {k: v for k, v in self.config.env_config.items() if k != "max_steps"}
            data = options.pop("data", None)
            env = EnvSettings(env_id=self.config.env, data=data, options=options)
            texts = plan_texts(trajectories, find_environment(env.env_id).require_oracle(env))
        return teacher_prompts(trajectories, texts, self.renderer)

    def sampling(self, temperature: float) -> Sampling:
        """Return the sampling parameters of responses."""
        return Sampling(temperature, self.config.max_response_tokens, self._eos)

    @cached_property
    def replicas(self) -> Replicas:
        """Replicas of the policy server."""
        return Replicas.of(self.config.serve_app, self.config.max_outage_s)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """Return the policy server's responses to prompts outside of episodes."""
        return self._run(self.replicas.generate, prompts, sampling, weights)

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
        """Return the groups taken and the curriculum's rates; those in progress are replayed."""
        return {
            "task_position": self._stream.position,
            "taken_after": sorted(self._stream.taken),
            "task_type_rates": dict(self._tasks.rates),
        }

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        """Set the weight tag (RLlib's weight sync), or the task position and rates (restore)."""
        self._tasks.rates |= state.get("task_type_rates", {})
        if "task_position" in state:
            taken = state.get("taken_after", ())
            self._loop.call(self._stream.restart, state["task_position"], taken)
        module_state = state.get(COMPONENT_RL_MODULE)
        if isinstance(module_state, ray.ObjectRef):
            module_state = ray.get(module_state)
        if module_state:
            self.use_weights(module_state[DEFAULT_MODULE_ID]["weight_tag"])

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
            if self._gateway is not None:
                self._loop.call(self._gateway.stop)
            self._loop.call(self._loop.stop, True)
        self._stack.close()
        self.use_weights(STARTING_WEIGHTS)
        while self._pools:
            self._pools.popitem()[1].close()
        self._env_thread.close()
