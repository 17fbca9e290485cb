"""The RLlib EnvRunner: whole groups on one asyncio loop, actions from the policy server."""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import ray
from ray import serve
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.utils.annotations import override
from ray.rllib.utils.checkpoints import Checkpointable
from ray.rllib.utils.metrics import (
    EPISODE_LEN_MEAN,
    EPISODE_RETURN_MEAN,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    WEIGHTS_SEQ_NO,
)

import env_wrappers  # noqa: F401  registers the environments with Gymnasium
from hgpo_rllib.agent import StepAgent
from hgpo_rllib.models import eos_token_ids, load_tokenizer
from hgpo_rllib.policy_server.client import PolicyClient, ask
from hgpo_rllib.policy_server.outage import running_replicas, unless_down
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.rollout.environments import EnvPool, EnvThread
from hgpo_rllib.rollout.group import FAILURES, POLICY_ID, Rollout
from hgpo_rllib.rollout.tasks import TaskOrder

if TYPE_CHECKING:
    from hgpo_rllib.algorithm import HGPOConfig

T = TypeVar("T")

# Coroutines stay at module level: with an `async def` method Ray would make the runner an asyncio
# actor, whose running loop forbids starting another.


class HGPOEnvRunner(EnvRunner, Checkpointable):
    """Plays groups of episodes; knows tasks by number and weights by tag."""

    def __init__(self, *, config: "HGPOConfig", **kwargs: Any):
        """Called by RLlib."""
        super().__init__(config=config, **kwargs)
        self.module = None  # the policy lives in the policy server
        self._tokenizer = load_tokenizer(config.model_path)
        self.agent = StepAgent(
            self._tokenizer,
            prompt=config.prompt,
            memory_length=config.prompt_memory_length,
            max_prompt_tokens=config.max_prompt_tokens,
            shorten=config.shorten_prompts,
            inadmissible_is_invalid=config.inadmissible_is_invalid,
        )
        self._eos = tuple(eos_token_ids(config.model_path, self._tokenizer))
        self._env_thread = EnvThread(config.env_timeout_s)
        self._pools: dict[str, EnvPool] = {}  # per split
        self._weights: WeightTag = STARTING_WEIGHTS
        self._weights_seq_no = 0
        self._finished: list[MultiAgentEpisode] = []
        self._client: PolicyClient | None = None  # of the rollout under way, or of the last
        self.failures: dict[str, int] = {}
        """What failed in the last call of `sample` or `play`, by the names in `FAILURES`."""
        self._loop = asyncio.Runner()  # cancels its tasks when it is interrupted
        first_env = self._pool(config.train_split).first
        self._spaces = (first_env.observation_space, first_env.action_space)
        self._tasks = TaskOrder(self.num_tasks(config.train_split), seed=config.seed or 0)

    @override(EnvRunner)
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        **kwargs: Any,
    ) -> list[MultiAgentEpisode]:
        """Play `num_episodes` groups of the train split, on the next tasks of the order."""
        first = self._tasks.position
        tasks = self._tasks.take(num_episodes or 1)
        episodes = self.play(
            self.config.train_split, tasks, self.config.group_size, self.config.temperature, first
        )
        self._finished += episodes
        return episodes

    def play(
        self, split: str, tasks: list[int], group_size: int, temperature: float, first: int = 0
    ) -> list[MultiAgentEpisode]:
        """Play each task of a split with a group; all groups run concurrently.

        Responses are seeded by the run's seed, the split and the place of the group: as many
        groups as there were before, `first`, and its index among `tasks`.
        """
        handle = serve.get_app_handle(self.config.serve_app)
        self._client = PolicyClient(handle, self.sampling(temperature), self._weights)
        rollout = Rollout(
            self.agent,
            self._client,
            self._pool(split),
            self.config.max_attempts,
            asyncio.Semaphore(self.config.max_concurrent_episodes),
        )
        seed = self.config.seed or 0
        names = [f"{seed}/{split}/{first + index}" for index in range(len(tasks))]
        try:
            return self._wait_for(rollout.groups(tasks, names, group_size))
        finally:
            self.failures = {name: rollout.failures[name] for name in FAILURES}

    def sampling(self, temperature: float) -> Sampling:
        """How responses of episodes are drawn."""
        return Sampling(temperature, self.config.max_response_tokens, self._eos)

    def ask(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag
    ) -> list[Generation | RequestFailedError]:
        """The policy server's responses to prompts, outside of any episode."""
        handle = serve.get_app_handle(self.config.serve_app)
        return self._wait_for(ask(handle, prompts, sampling, weights))

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what asks the policy server, which may be down for a while."""
        running = partial(running_replicas, self.config.serve_app)
        return self._loop.run(unless_down(work, running, self.config.max_outage_s))

    @property
    def prompts_in_flight(self) -> int:
        """Prompts without an answer yet; may be asked from another thread."""
        return self._client.in_flight if self._client else 0

    def num_tasks(self, split: str) -> int:
        """Tasks that a split holds."""
        return self._pool(split).first.get_wrapper_attr("num_tasks")

    def _pool(self, split: str) -> EnvPool:
        if split not in self._pools:
            make = partial(gym.make, self.config.env, split=split, **self.config.env_config)
            self._pools[split] = EnvPool(make, self._env_thread)
        return self._pools[split]

    @override(EnvRunner)
    def get_metrics(self) -> dict[str, Any]:
        """RLlib's metrics of the episodes sampled since the last call."""
        for episode in self._finished:
            self.metrics.log_value(NUM_EPISODES, len(episode.agent_episodes), reduce="sum")
            self.metrics.log_value(
                NUM_EPISODES_LIFETIME, len(episode.agent_episodes), reduce="lifetime_sum"
            )
            steps = episode.agent_steps()
            self.metrics.log_value(NUM_ENV_STEPS_SAMPLED, steps, reduce="sum")
            self.metrics.log_value(NUM_ENV_STEPS_SAMPLED_LIFETIME, steps, reduce="lifetime_sum")
            for member in episode.agent_episodes.values():
                won = float(member.get_infos(-1)["won"])
                window = self.config.groups_per_iteration * self.config.group_size
                self.metrics.log_value("success_rate", won, window=window)
                self.metrics.log_value(EPISODE_RETURN_MEAN, member.get_return(), window=window)
                self.metrics.log_value(EPISODE_LEN_MEAN, len(member), window=window)
        self._finished.clear()
        return self.metrics.reduce()

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        """Spaces of a member and of the policy."""
        return {
            INPUT_ENV_SPACES: self._spaces,
            INPUT_ENV_SINGLE_SPACES: self._spaces,
            POLICY_ID: self._spaces,
        }

    @override(Checkpointable)
    def get_state(self, components=None, *, not_components=None, **kwargs) -> dict[str, Any]:
        """The position in the task order."""
        return {WEIGHTS_SEQ_NO: self._weights_seq_no, "task_position": self._tasks.position}

    @override(Checkpointable)
    def set_state(self, state: dict[str, Any]) -> None:
        """Take the weight tag (RLlib's weight sync) or the position in the task order (restore)."""
        self._weights_seq_no = state.get(WEIGHTS_SEQ_NO, self._weights_seq_no)
        self._tasks.position = state.get("task_position", self._tasks.position)
        module_state = state.get(COMPONENT_RL_MODULE)
        if isinstance(module_state, ray.ObjectRef):
            module_state = ray.get(module_state)
        if module_state:
            self._weights = module_state[POLICY_ID]["weight_tag"]

    @override(Checkpointable)
    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """For checkpoints."""
        return (), {"config": self.config}

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """RLlib's health check: nothing that could break outlives a call to `sample`."""

    @override(EnvRunner)
    def stop(self) -> None:
        """Close the environments and the event loop, and give the weights up."""
        self._client, self._weights = None, STARTING_WEIGHTS
        for pool in self._pools.values():
            pool.close()
        self._env_thread.close()
        self._loop.close()
