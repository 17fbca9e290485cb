"""`hgpo bench rollout`: the policy server and the rollouts against the engine alone and lock-step.

All sides run in one command, in turns, on the same model, prompts and tasks.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import gymnasium as gym

from hgpo_rllib.agent import response_seed
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.bench.bare_engine import BareEngine
from hgpo_rllib.bench.lock_step import play_in_lock_step
from hgpo_rllib.config import RunConfig
from hgpo_rllib.policy_server.client import PolicyClient
from hgpo_rllib.policy_server.engine import engine_arguments, replica_environment
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.standalone import running_policy_server
from hgpo_rllib.policy_server.types import STARTING_WEIGHTS, Generation, Prompt, Sampling
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.trajectory import Trajectory


@dataclass(frozen=True)
class Requests:
    """One set of prompts at a fixed concurrency, by `vllm.LLM.generate` and through Ray Serve."""

    concurrency: int
    prompts: int
    bare_tokens: int
    """Of vLLM's responses; nearly always those of the other side, seed for seed."""
    bare_seconds: float
    tokens: int
    seconds: float
    latency_s: float
    """Mean from a prompt to its response."""
    engine_s: float
    """Mean of the part that the engine had the request."""

    @property
    def ratio(self) -> float:
        """Tokens per second of the policy server over those of the engine alone."""
        return (self.tokens / self.seconds) / (self.bare_tokens / self.bare_seconds)

    @property
    def overhead_ms(self) -> float:
        """Time that the way through Serve adds, a request: of all of them, by their number."""
        return 1000 * (self.seconds - self.bare_seconds) / self.prompts


@dataclass(frozen=True)
class Episodes:
    """The same tasks, each member at its own pace and in lock-step."""

    episodes: int
    steps: int
    longest: int
    seconds: float
    tokens: int
    request_s: float
    """Mean of a step."""
    engine_s: float
    """Mean of the part of it that the engine had."""
    env_s: float
    lock_steps: int
    """Steps in lock-step, without those after an episode's end."""
    lock_seconds: float

    @property
    def ratio(self) -> float:
        """Useful steps per second, over those in lock-step."""
        return (self.steps / self.seconds) / (self.lock_steps / self.lock_seconds)


@dataclass(frozen=True)
class RolloutWorkload:
    """What to run."""

    config: RunConfig
    """With `env.data` and `model.model_path` set."""
    concurrency: int
    prompts: int
    """Of a turn; the last ones, which run beside fewer others, should count little."""
    repeats: int
    lock_step: bool
    """Also compare whole episodes."""


def bench_rollout(plan: RolloutWorkload) -> tuple[list[Requests], list[Episodes]]:
    """Measure each side `repeats` times, in turns, after one that is not measured.

    Ray and Serve have to run (`hgpo_rllib.run.cluster.ray_cluster`).
    """
    server = plan.config.policy_server.model_copy(update={"max_num_seqs": plan.concurrency})
    config = plan.config.model_copy(update={"policy_server": server})
    with served(config) as runner:
        prompts = recorded_prompts(runner, config, (1 + plan.repeats) * plan.prompts)
        requests = compare_requests(plan, config, runner, prompts)
        episodes = compare_episodes(plan, runner) if plan.lock_step else []
    return requests, episodes


@contextmanager
def served(config: RunConfig) -> Iterator[HGPOEnvRunner]:
    """A runner that plays with a policy server of its own, without a learner."""
    server = running_policy_server(config.model, config.agent, config.policy_server, config.seed)
    with server as app:
        algorithm = HGPOConfig.from_run_config(config)
        algorithm.serve_app = app
        runner = HGPOEnvRunner(config=algorithm)
        try:
            yield runner
        finally:
            runner.stop()


def recorded_prompts(runner: HGPOEnvRunner, config: RunConfig, count: int) -> list[Prompt]:
    """So many prompts of episodes, each with a seed of its own; the first ones again if need be."""
    played = runner.rollout(config.rollout.groups_per_iteration).trajectories
    ids = [turn.prompt_ids.tolist() for trajectory in played for turn in trajectory.turns]
    return [Prompt(ids[i % len(ids)], response_seed("bench", i)) for i in range(count)]


def compare_requests(
    plan: RolloutWorkload,
    config: RunConfig,
    runner: HGPOEnvRunner,
    prompts: Sequence[Prompt],
) -> list[Requests]:
    """Both sides on one part of the prompts after the other."""
    sampling = runner.sampling(config.rollout.temperature)
    arguments = engine_arguments(config.model, config.agent, config.policy_server, config.seed)
    bare = BareEngine(arguments, replica_environment(config.policy_server))
    results = []
    try:
        for turn in range(1 + plan.repeats):
            part = prompts[turn * plan.prompts : (turn + 1) * plan.prompts]
            alone = bare.generate(part, sampling)
            results.append(_requests(plan, runner.replicas, part, sampling, alone))
    finally:
        bare.close()
    return results[1:]


def _requests(
    plan: RolloutWorkload,
    replicas: Replicas,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    alone: tuple[float, int],
) -> Requests:
    start = time.perf_counter()
    answers = asyncio.run(_ask_all(replicas, prompts, sampling, plan.concurrency))
    return Requests(
        concurrency=plan.concurrency,
        prompts=len(prompts),
        tokens=sum(len(generation.token_ids) for generation, _ in answers),
        bare_tokens=alone[1],
        bare_seconds=alone[0],
        seconds=time.perf_counter() - start,
        latency_s=statistics.mean(seconds for _, seconds in answers),
        engine_s=statistics.mean(generation.engine_s for generation, _ in answers),
    )


async def _ask_all(
    replicas: Replicas, prompts: Sequence[Prompt], sampling: Sampling, concurrency: int
) -> list[tuple[Generation, float]]:
    """Each response with its seconds, through the rollouts' client."""
    client = PolicyClient(replicas, sampling, STARTING_WEIGHTS)
    slots = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt) -> tuple[Generation, float]:
        async with slots:
            start = time.perf_counter()
            return await client.generate(prompt), time.perf_counter() - start

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def compare_episodes(plan: RolloutWorkload, runner: HGPOEnvRunner) -> list[Episodes]:
    """Both sides on the first tasks of the training split, again and again with other seeds."""
    rollout, split = plan.config.rollout, plan.config.env.train_split
    tasks = list(range(min(rollout.groups_per_iteration, runner.num_tasks(split))))
    each = [task for task in tasks for _ in range(rollout.group_size)]
    algorithm = runner.config
    envs = [gym.make(algorithm.env, split=split, **algorithm.env_config) for _ in each]
    results = []
    for turn in range(1 + plan.repeats):
        start = time.perf_counter()
        played = runner.play(split, tasks, rollout.group_size, rollout.temperature, 1000 * turn)
        seconds = time.perf_counter() - start
        client = PolicyClient(
            runner.replicas, runner.sampling(rollout.temperature), STARTING_WEIGHTS
        )
        start = time.perf_counter()
        steps = asyncio.run(play_in_lock_step(envs, each, f"lock-{turn}", runner.renderer, client))
        results.append(_episodes(played, seconds, steps, time.perf_counter() - start))
    for env in envs:
        env.close()
    return results[1:]


def _episodes(
    played: list[Trajectory], seconds: float, lock_steps: int, lock_seconds: float
) -> Episodes:
    steps = [step for trajectory in played for step in trajectory.steps]
    return Episodes(
        episodes=len(played),
        steps=len(steps),
        longest=max(map(len, played)),
        seconds=seconds,
        tokens=sum(len(step.turn.response_ids) for step in steps),
        request_s=statistics.mean(step.turn.request_s for step in steps),
        engine_s=statistics.mean(step.turn.engine_s for step in steps),
        env_s=statistics.mean(step.env_s for step in steps),
        lock_steps=lock_steps,
        lock_seconds=lock_seconds,
    )
