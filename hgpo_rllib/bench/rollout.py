"""`hgpo bench rollout`: compare the policy server with plain vLLM, and rollouts with lock-step.

All sides take turns in one command, on the same model, prompts and tasks. Weight updates are timed
too, from publishing in the learner to the first token of the new version.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch
from transformers import PreTrainedModel

from hgpo_rllib.agent import AgentFactory, response_seed
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.bench import plain_vllm
from hgpo_rllib.bench.measure import Row, Tables, new_process
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.models import checkpoint_form, load_model
from hgpo_rllib.policy_server import vllm_settings
from hgpo_rllib.policy_server.client import PolicyClient
from hgpo_rllib.policy_server.engine import find_transport
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.server import PolicyServer
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    Generation,
    Prompt,
    RequestFailedError,
    Sampling,
    WeightTag,
)
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.trajectory import Trajectory
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import WEIGHT_TRANSPORTS, PolicyServerSettings

Runner = TypeVar("Runner", bound=HGPOEnvRunner)
PROMPT = Prompt(list(range(100, 132)), seed=0)
CHECKED_TOKENS = 16
NOISE = 0.01  # added by each update, as a share of the tensor's standard deviation


def bench_rollout(
    config: RunConfig, concurrency: int, prompts: int, repeats: int, lock_step: bool
) -> Tables:
    """Measure each side `repeats` times in alternating turns, after a warm-up turn.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`). A turn has `prompts`
    prompts: use many, as fewer than `concurrency` requests are left at its end.

    Returns:
        ``requests`` and, with `lock_step`, ``episodes`` of the same tasks played asynchronously and
        in lock-step; see `describe_requests` and `describe_episodes`.
    """
    server = config.policy_server.model_copy(update={"max_num_seqs": concurrency})
    config = config.model_copy(update={"policy_server": server})
    with served(config, HGPOEnvRunner) as runner:
        recorded = recorded_prompts(runner, config, (1 + repeats) * prompts)
        parts = [recorded[i : i + prompts] for i in range(0, len(recorded), prompts)]
        tables = {"requests": compare_requests(config, runner, parts, concurrency)}
        if lock_step:
            tables["episodes"] = compare_whole_episodes(config, runner, repeats)
    return tables


def check(server: PolicyServerSettings) -> None:
    """Raise ConfigError unless the policy server and plain vLLM fit the same device."""
    for name in ("num_replicas", "max_replicas"):
        if (getattr(server, name) or 1) > 1:
            raise ConfigError(f"policy_server.{name}: set it to 1: plain vLLM is one engine")
    if server.replica_gpus and server.memory_utilization >= 0.5:
        raise ConfigError(
            "policy_server.memory_utilization: set it below 0.5: plain vLLM uses the same GPU"
        )


@contextmanager
def served(config: RunConfig, runner_class: type[Runner]) -> Iterator[Runner]:
    """Start a policy server without a learner and yield an env runner that uses it."""
    with PolicyServer(config.model, config.agent, config.policy_server, config.seed) as server:
        algorithm = HGPOConfig.from_run_config(config)
        algorithm.serve_app = server.app
        runner = runner_class(config=algorithm)
        try:
            yield runner
        finally:
            runner.stop()


def recorded_prompts(runner: HGPOEnvRunner, config: RunConfig, count: int) -> list[Prompt]:
    """Return `count` prompts of episodes with different seeds; prompts are repeated if needed."""
    played = runner.sample(num_groups=config.rollout.groups_per_iteration).trajectories
    ids = [turn.prompt_ids.tolist() for trajectory in played for turn in trajectory.turns]
    return [Prompt(ids[i % len(ids)], response_seed("bench", i)) for i in range(count)]


def compare_requests(
    config: RunConfig,
    runner: HGPOEnvRunner,
    parts: Sequence[Sequence[Prompt]],
    concurrency: int,
) -> list[Row]:
    """Compare both sides on each part of the prompts; the first part is a warm-up."""
    sampling = runner.sampling(config.rollout.temperature)
    server = config.policy_server
    arguments = vllm_settings.engine_arguments(config.model, config.agent, server, config.seed)
    rows = []
    with new_process() as bare:
        bare.submit(plain_vllm.start, arguments, vllm_settings.env_vars(server)).result()
        # Both prefix caches get all prompts first: the server has them since they were recorded.
        prompts = {tuple(prompt.token_ids): prompt for part in parts for prompt in part}
        bare.submit(plain_vllm.generate, list(prompts.values()), sampling).result()
        for part in parts:
            alone = bare.submit(plain_vllm.generate, part, sampling).result()
            client = PolicyClient(runner.replicas, sampling, STARTING_WEIGHTS)
            start = time.perf_counter()
            answers = asyncio.run(_ask_all(client, part, concurrency))
            rows.append(describe_requests(alone, time.perf_counter() - start, answers))
    return rows[1:]


def describe_requests(
    alone: tuple[float, int], seconds: float, answers: Sequence[tuple[Generation, float]]
) -> Row:
    """Return the row of a turn.

    `alone` has the seconds and response tokens of plain vLLM. The policy server took `seconds` for
    the `answers`, each with its latency in seconds.
    """
    tokens = sum(len(generation.token_ids) for generation, _ in answers)
    bare_seconds, bare_tokens = alone
    return {
        "tokens": tokens,
        "vllm_tokens_per_s": bare_tokens / bare_seconds,
        "serve_tokens_per_s": tokens / seconds,
        "ratio": (tokens / seconds) / (bare_tokens / bare_seconds),
        "added_ms_a_request": 1000 * (seconds - bare_seconds) / len(answers),
        "latency_ms": 1000 * statistics.mean(latency for _, latency in answers),
        "engine_ms": 1000 * statistics.mean(answer.engine_s for answer, _ in answers),
    }


async def _ask_all(
    client: PolicyClient, prompts: Sequence[Prompt], concurrency: int
) -> list[tuple[Generation, float]]:
    """Return each response with its latency in seconds."""
    slots = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt) -> tuple[Generation, float]:
        async with slots:
            start = time.perf_counter()
            return await client.generate(prompt), time.perf_counter() - start

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def compare_whole_episodes(config: RunConfig, runner: HGPOEnvRunner, repeats: int) -> list[Row]:
    """Compare both sides on the first training tasks, with different seeds in each turn."""
    rollout, split = config.rollout, config.env.train_split
    tasks = list(range(min(rollout.groups_per_iteration, runner.num_tasks(split))))
    each = [task for task in tasks for _ in range(rollout.group_size)]
    envs = [make_environment(config.env, split) for _ in each]
    rows = []
    for turn in range(1 + repeats):
        start = time.perf_counter()
        played = runner.play(split, tasks, rollout.group_size, rollout.temperature, 1000 * turn)
        seconds = time.perf_counter() - start
        sampling = runner.sampling(rollout.temperature)
        client = PolicyClient(runner.replicas, sampling, STARTING_WEIGHTS)
        make_agent = runner.agent_factory(client)
        start = time.perf_counter()
        steps = asyncio.run(play_in_lock_step(envs, each, f"lock-{turn}", make_agent))
        rows.append(describe_episodes(played, seconds, steps / (time.perf_counter() - start)))
    for env in envs:
        env.close()
    return rows[1:]


async def play_in_lock_step(
    envs: Sequence[gym.Env], tasks: Sequence[int], key: str, make_agent: AgentFactory
) -> int:
    """Play ``tasks[i]`` in ``envs[i]`` in lock-step, as the released code does.

    Every turn requests responses for all environments, including those whose episode has ended,
    waits for the slowest response, and then steps the environments one by one.

    Returns the number of environment steps, without turns after the end of an episode. `key` is
    the prefix of the seeds of responses; `make_agent` creates the agents.
    """
    seen: list[Any] = [env.reset(seed=task) for env, task in zip(envs, tasks, strict=True)]
    agents = [
        make_agent(info, f"{key}/{task}", str(index))
        for index, (task, (_, info)) in enumerate(zip(tasks, seen, strict=True))
    ]
    over, steps = [False] * len(agents), 0
    while not all(over):
        turns = await asyncio.gather(*(a.act(*last) for a, last in zip(agents, seen, strict=True)))
        for index, turn in enumerate(turns):
            if not over[index]:
                step: Any = envs[index].step(turn.action)
                observation, _, terminated, truncated, info = step
                seen[index], over[index] = (observation, info), terminated or truncated
                steps += 1
    return steps


def describe_episodes(played: Sequence[Trajectory], seconds: float, lock_steps_per_s: float) -> Row:
    """Return the row of a turn.

    Args:
        played: the episodes played asynchronously.
        seconds: their total duration.
        lock_steps_per_s: environment steps per second in lock-step.
    """
    steps = [step for trajectory in played for step in trajectory.steps]
    return {
        "episodes": len(played),
        "steps": len(steps),
        "longest": max(map(len, played)),
        "steps_per_s": len(steps) / seconds,
        "lock_step_steps_per_s": lock_steps_per_s,
        "ratio": len(steps) / seconds / lock_steps_per_s,
        "request_ms": 1000 * statistics.mean(step.turn.request_s for step in steps),
        "engine_ms": 1000 * statistics.mean(step.turn.engine_s for step in steps),
        "env_ms": 1000 * statistics.mean(step.env_s for step in steps),
    }


def bench_weights(model: ModelSettings, server: PolicyServerSettings, updates: int) -> list[Row]:
    """Update a model `updates` times and time each update of a policy server.

    Ray and Serve must be running (`hgpo_rllib.run.cluster.ray_cluster`). The learner is this
    process. One more update warms up, because vLLM's first reload is slower.

    Returns:
        One row per update of an otherwise idle server: seconds until the weights are in Ray's
        object store (``published_s``) and until the first token of the new version is returned
        (``first_token_s``), and the largest difference between log-probabilities of server and
        learner afterwards (``logp_gap``).
    """
    model = model.model_copy(update={"lora_rank": 0})  # whole models are published, not adapters
    assert model.model_path is not None
    agent = AgentSettings(max_prompt_tokens=64, max_response_tokens=CHECKED_TOKENS)
    with PolicyServer(model, agent, server) as running:
        replicas = Replicas.of(running.app, server.max_outage_s)
        _ask(replicas, STARTING_WEIGHTS, tokens=1)  # the engine's first forward pass is slower
        learner = load_model(model.model_path)
        transport = find_transport(WEIGHT_TRANSPORTS[server.weight_transport])
        publisher = WeightPublisher(getattr(torch, model.dtype), transport)
        measured = [_update(replicas, learner, publisher) for _ in range(1 + updates)]
        return measured[1:]


def _update(replicas: Replicas, learner: PreTrainedModel, publisher: WeightPublisher) -> Row:
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += NOISE * parameter.std(correction=0) * torch.randn_like(parameter)
    begin = time.perf_counter()
    tag = publisher.publish(checkpoint_form(learner.state_dict(), learner.config))
    published = time.perf_counter()
    first = _ask(replicas, tag, tokens=1)
    answered = time.perf_counter()
    if first.version != tag.version:
        raise RuntimeError(f"the policy server answered under {first.version}, not {tag.version}")
    gap = _logp_gap(learner, _ask(replicas, tag, CHECKED_TOKENS))
    return {
        "published_s": published - begin,
        "first_token_s": answered - begin,
        "logp_gap": gap,
    }


def _ask(replicas: Replicas, tag: WeightTag, tokens: int) -> Generation:
    sampling = Sampling(1.0, max_tokens=tokens, stop_token_ids=())
    (answer,) = asyncio.run(replicas.generate([PROMPT], sampling, tag))
    if isinstance(answer, RequestFailedError):
        raise answer
    return answer


def _logp_gap(learner: PreTrainedModel, answer: Generation) -> float:
    ids = [*PROMPT.token_ids, *answer.token_ids.tolist()]
    with torch.no_grad():
        logits = learner(input_ids=torch.tensor([ids])).logits[0, len(PROMPT.token_ids) - 1 : -1]
    drawn = torch.tensor(answer.token_ids[:, None], dtype=torch.int64)
    logp = logits.log_softmax(-1).gather(-1, drawn)[:, 0].numpy()
    return float(np.abs(logp - answer.logp).max())
