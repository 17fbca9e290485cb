"""`hgpo bench scale`: how rollouts and the learner's input grow, without an engine.

The env runners, environments and prompts are those of training. In place of the policy server, the
responses of a recorded run are returned after their recorded latencies.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import ray

from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.bench.measure import Row, Tables, resident
from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner.batching import minibatches, row_sequences, signal_columns, token_columns
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.policy_server.types import Generation, Prompt, Sampling, WeightTag
from hgpo_rllib.results.runs import Run
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Trajectory

SCHEDULES = (("synchronous", 0), ("one_step_off", 1), ("asynchronous", 1), ("asynchronous", 2))
"""Compared schedules, each with its `rollout.max_staleness`."""
UPDATES = 4  # per schedule, after one that is not measured


class ReplayedReplicas:
    """Return recorded responses after their latencies, in place of `Replicas`."""

    def __init__(self, recorded: Sequence[Generation]):
        """`recorded`: responses; ``engine_s`` is the latency of the whole request."""
        self._recorded = recorded

    async def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, weights: WeightTag, session: str = ""
    ) -> list[Generation]:
        """Return one response per prompt, chosen by its seed, after the latency of the first."""
        chosen = [self._recorded[(p.seed or 0) % len(self._recorded)] for p in prompts]
        await asyncio.sleep(chosen[0].engine_s)
        return [replace(response, version=weights.version) for response in chosen]

    async def any_runs(self) -> bool:
        """See `Replicas`."""
        return True


class ReplayRunner(HGPOEnvRunner):
    """Env runner that replays recorded responses and measures its own work."""

    def __init__(self, *, recorded: Sequence[Generation], **kwargs: Any):
        """See `HGPOEnvRunner`."""
        super().__init__(**kwargs)
        self.replicas = cast(Replicas, ReplayedReplicas(recorded))
        self.prompt_s = 0.0
        render = self.renderer.prompt

        def timed(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return render(*arguments)
            finally:
                self.prompt_s += time.thread_time() - start

        self.renderer.prompt = timed  # type: ignore[assignment, method-assign]

    def usage(self) -> Row:
        """Return CPU seconds of this process so far, and its memory in bytes."""
        gc.collect()
        return {
            "cpu_s": time.process_time(),
            "env_s": self._loop.call(self._env_thread.call, time.thread_time),
            "prompt_s": self.prompt_s,
            "memory": resident(),
        }


def bench_scale(
    run: Run, config: RunConfig, episodes: Sequence[int], runners: Sequence[int]
) -> Tables:
    """Measure rollouts, schedules and the learner's input. Ray must be running.

    Args:
        run: a run with recorded responses.
        config: its settings.
        episodes: numbers of concurrent episodes.
        runners: numbers of env runner processes; 0: the main process.

    Returns:
        ``rollouts``, one row per number of runners and episodes; ``learner input``, one row per
        number of episodes; ``schedules``.
    """
    recorded = recorded_responses(run)
    rollouts, inputs = [], []
    for count in runners:
        for concurrent in episodes:
            with started(config, recorded, count, concurrent) as runner:
                row, played = measure_rollout(runner, concurrent)
            rollouts.append({"runners": count, **row})
            if count == runners[0]:
                inputs.append(measure_input(config, played))
            del played
    return {
        "rollouts": rollouts,
        "learner input": inputs,
        "schedules": compare_schedules(config, recorded),
    }


def recorded_responses(run: Run) -> list[Generation]:
    """Return the responses of a run's last iterations with their latencies."""
    steps = run.steps
    return [
        Generation(
            np.asarray(step.response_ids, np.int32),
            np.asarray(step.behaviour_logp, np.float32),
            version="",
            finish_reason="length" if step.response_truncated else "stop",
            engine_s=float(step.request_s),
        )
        for step in steps.itertuples()
    ]


@contextmanager
def started(
    config: RunConfig, recorded: Sequence[Generation], count: int, episodes: int, **settings: Any
) -> Iterator[ReplayRunner]:
    """Start a runner in this process, which has `count` runners in actors play its groups."""
    algorithm = HGPOConfig.from_run_config(config)
    algorithm.training(
        constrain_actions=False, max_concurrent_episodes=max(episodes, count, 1), **settings
    )
    runner = ReplayRunner(config=algorithm, recorded=recorded)
    actor = ray.remote(num_cpus=0)(ReplayRunner)
    try:
        runner.actors = [actor.remote(config=algorithm, recorded=recorded) for _ in range(count)]
        for handle in runner.actors:
            ray.get(handle.ping.remote())
        yield runner
    finally:
        runner.stop()
        for handle in runner.actors:
            ray.kill(handle)


def measure_rollout(runner: ReplayRunner, episodes: int) -> tuple[Row, list[Trajectory]]:
    """Play `episodes` concurrent episodes after a few to warm up.

    Returns:
        Steps per second, CPU milliseconds per step of all processes, in total and of environments,
        prompts and the rest, and memory per episode; and the trajectories.
    """
    config = runner.config
    size, tasks = config.group_size, runner.num_tasks(config.train_split)

    def play(groups: int) -> list[Trajectory]:
        numbers = [number % tasks for number in range(groups)]
        return runner.play(config.train_split, numbers, size, config.temperature)

    play(max(1, len(runner.actors)))
    before, start = usage(runner), time.perf_counter()
    played = play(max(1, episodes // size))
    seconds, after = time.perf_counter() - start, usage(runner)
    steps = sum(map(len, played))
    used = {name: after[name] - before[name] for name in before}
    ms = {name: 1000 * used[name] / steps for name in ("cpu_s", "env_s", "prompt_s")}
    row = {
        "episodes": len(played),
        "steps": steps,
        "steps_per_s": steps / seconds,
        "cores": used["cpu_s"] / seconds,
        "cpu_ms_per_step": ms["cpu_s"],
        "environments_ms": ms["env_s"],
        "prompts_ms": ms["prompt_s"],
        "orchestration_ms": ms["cpu_s"] - ms["env_s"] - ms["prompt_s"],
        "kib_per_episode": used["memory"] / len(played) / 2**10,
    }
    return row, played


def usage(runner: ReplayRunner) -> Row:
    """Return the sums of `ReplayRunner.usage` over all processes."""
    each = [runner.usage(), *(ray.get(actor.usage.remote()) for actor in runner.actors)]
    return {name: sum(row[name] for row in each) for name in each[0]}


def measure_input(config: RunConfig, played: list[Trajectory]) -> Row:
    """Time the way from trajectories to mini-batches, in CPU microseconds per step."""
    gc.collect()
    memory, times = resident(), [time.process_time()]
    scored = score(played, config.algorithm)
    times.append(time.process_time())
    columns = token_columns(played) | signal_columns(scored)
    times.append(time.process_time())
    rng = np.random.default_rng(0)
    parts = list(minibatches(row_sequences(columns), config.learner.minibatch_size, 1, rng))
    times.append(time.process_time())
    steps = len(scored.steps)
    us = [1e6 * seconds / steps for seconds in np.diff(times)]
    return {
        "steps": steps,
        "mini_batches": len(parts),
        "advantages_us": us[0],
        "columns_us": us[1],
        "mini_batches_us": us[2],
        "kib_per_step": (resident() - memory) / steps / 2**10,
    }


def compare_schedules(config: RunConfig, recorded: Sequence[Generation]) -> list[Row]:
    """Compare the throughput of the schedules with updates that take as long as a rollout."""
    groups = config.rollout.groups_per_iteration
    rows: list[Row] = []
    update_s = 0.0
    for schedule, staleness in SCHEDULES:
        episodes = (1 + staleness) * groups * config.rollout.group_size
        settings = {"schedule": schedule, "max_staleness": staleness}
        with started(config, recorded, 0, episodes, **settings) as runner:
            steps, stale, seconds = 0, 0, []
            for update in range(1 + UPDATES):
                start = time.perf_counter()
                played = runner.rollout(groups)
                if schedule == "one_step_off":
                    runner.sample_ahead(groups)
                if not rows:  # the synchronous schedule: its rollouts set the time of updates
                    update_s = played.seconds
                time.sleep(update_s)
                runner.use_weights(WeightTag("bench", update, None))
                if update:
                    seconds.append(time.perf_counter() - start)
                    steps += sum(map(len, played.trajectories))
                    stale += played.failures["stale_groups"]
        rows.append(
            {
                "schedule": schedule,
                "max_staleness": staleness,
                "iteration_s": statistics.median(seconds),
                "steps_per_s": steps / sum(seconds),
                "update_s": update_s,
                "stale_groups": stale / UPDATES,
            }
        )
    return rows
