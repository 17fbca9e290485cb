"""`hgpo bench scale`: how rollouts and the learner's input grow, without a model.

Env runners, environments, prompts and the policy server are those of training. The engine returns
the responses of a recorded run after their recorded latencies (`replay`).
"""

import cProfile
import ctypes
import gc
import io
import pstats
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import matplotlib as mpl
import numpy as np
import ray
import torch

from hgpo_rllib.agent.renderer import EncodedPrompt, TokenRenderer
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.bench.measure import Row, Tables, resident
from hgpo_rllib.bench.replay import recorded_responses, replaying
from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner.batching import minibatches, row_sequences, signal_columns, token_columns
from hgpo_rllib.policy_server import object_store
from hgpo_rllib.policy_server.publisher import WeightPublisher
from hgpo_rllib.reporting import style
from hgpo_rllib.results.runs import Run
from hgpo_rllib.rollout.runner import HGPOEnvRunner
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Trajectory

SCHEDULES = (("synchronous", 0), ("one_step_off", 1), ("asynchronous", 1), ("asynchronous", 2))
"""Compared schedules, each with its `rollout.max_staleness`."""
UPDATES = 3  # per schedule, after one that is not measured
PROFILED_GROUPS = 32
PROFILE_ROWS = 16
PLOTTED = {
    "cpu_ms_per_step": "CPU, ms per step",
    "orchestration_ms": "Orchestration, ms per step",
    "steps_per_s": "Steps per second",
}


class TimedRenderer(TokenRenderer):
    """Renderer that measures its own work, also that of its copies for tasks of a mixture."""

    seconds: ClassVar[float] = 0.0
    """CPU seconds of all prompts of this process."""

    def prompt(self, *arguments: Any) -> EncodedPrompt:
        """See `TokenRenderer`."""
        start = time.thread_time()
        try:
            return super().prompt(*arguments)
        finally:
            TimedRenderer.seconds += time.thread_time() - start


class MeasuredRunner(HGPOEnvRunner):
    """Env runner that measures its own work."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.clean_s = 0.0
        self.renderer.__class__ = TimedRenderer

    def usage(self) -> Row:
        """Return CPU seconds of this process and its parts so far, and its memory in bytes."""
        used = {
            "cpu_s": time.process_time() - self.clean_s,
            "env_s": self._loop.call(self._env_thread.call, time.thread_time),
            "loop_s": self._loop.call(time.thread_time),
            "prompt_s": TimedRenderer.seconds,
        }
        start = time.thread_time()  # no work of the rollout between two calls
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # glibc would reuse the memory of earlier rollouts
        self.clean_s += time.thread_time() - start
        return used | {"memory": resident()}

    def profile(self, function: Callable[[], object]) -> str:
        """Return cProfile's table of the event loop's thread during a call, by own time."""
        profiler, table = cProfile.Profile(), io.StringIO()
        self._loop.call(profiler.enable)
        try:
            function()
        finally:
            self._loop.call(profiler.disable)
        pstats.Stats(profiler, stream=table).sort_stats("tottime").print_stats(PROFILE_ROWS)
        return table.getvalue()


def bench_scale(
    run: Run,
    config: RunConfig,
    episodes: Sequence[int],
    runners: Sequence[int],
    input_steps: Sequence[int],
    say: Callable[[str], object],
) -> Tables:
    """Measure rollouts, the learner's input and schedules. Ray must be running.

    Args:
        run: a run with recorded responses.
        config: its settings.
        episodes: numbers of concurrent episodes.
        runners: numbers of env runner processes; 0: the main process.
        input_steps: numbers of steps in a batch of the learner.
        say: called with what is measured next, and with a profile of rollouts.

    Returns:
        ``rollouts``, one row per number of runners and episodes; ``learner_input``, one row per
        number of steps; ``schedules``.
    """
    tables: Tables = {"rollouts": []}
    with replaying(config, recorded_responses(run)) as app:
        for processes in runners:
            with started(config, app, processes, max(episodes)) as runner:
                for concurrent in episodes:
                    say(f"{concurrent:,} episodes, {processes} env runner processes")
                    row, played = measure_rollout(runner, concurrent)
                    tables["rollouts"].append({"runners": processes, **row})
        with started(config, app, 0, PROFILED_GROUPS * config.rollout.group_size) as runner:
            play(runner, PROFILED_GROUPS)
            say(f"profile of {PROFILED_GROUPS} groups")
            say(runner.profile(lambda: play(runner, PROFILED_GROUPS)))
        say("learner input")
        tables["learner_input"] = [
            measure_input(config, repeated(played, steps)) for steps in input_steps
        ]
        say("schedules")
        tables["schedules"] = compare_schedules(config, app)
    return tables


@contextmanager
def started(
    config: RunConfig, app: str, processes: int, episodes: int, **settings: Any
) -> Iterator[MeasuredRunner]:
    """Start a runner in this process, which has runners in actors play its groups.

    `app` is the name of the policy server's application. Without actors (`processes` 0), the runner
    plays the groups itself. `settings` are others of `HGPOConfig.training`.
    """
    algorithm = HGPOConfig.from_run_config(config)
    algorithm.training(constrain_actions=False, max_concurrent_episodes=episodes, **settings)
    algorithm.serve_app = app
    runner = MeasuredRunner(config=algorithm)
    actor = ray.remote(num_cpus=0)(MeasuredRunner)
    try:
        runner.actors = [actor.remote(config=algorithm) for _ in range(processes)]
        for handle in runner.actors:
            ray.get(handle.ping.remote())
        yield runner
    finally:
        runner.stop()
        for handle in runner.actors:
            ray.kill(handle)


def play(runner: MeasuredRunner, groups: int) -> list[Trajectory]:
    """Play `groups` groups of the train split concurrently."""
    config = runner.config
    tasks = runner.num_tasks(config.train_split)
    numbers = [number % tasks for number in range(groups)]
    return runner.play(config.train_split, numbers, config.group_size, config.temperature)


def measure_rollout(runner: MeasuredRunner, episodes: int) -> tuple[Row, list[Trajectory]]:
    """Play `episodes` concurrent episodes after a few to warm up.

    Returns:
        The row: steps per second, and CPU milliseconds per step of all runners, in total, of
        environments, of prompts, and of orchestration, which is the rest: the event loop, and the
        threads of Ray and Serve. Then the trajectories.
    """
    play(runner, max(1, len(runner.actors)))
    before, start = usage(runner), time.perf_counter()
    played = play(runner, max(1, episodes // runner.config.group_size))
    seconds, after = time.perf_counter() - start, usage(runner)
    steps = sum(map(len, played))
    ms = {name: 1000 * (after[name] - before[name]) / steps for name in before if name != "memory"}
    orchestration = ms["cpu_s"] - ms["env_s"] - ms["prompt_s"]
    loop = ms["loop_s"] - ms["prompt_s"]
    return {
        "episodes": len(played),
        "steps": steps,
        "steps_per_s": steps / seconds,
        "cpu_ms_per_step": ms["cpu_s"],
        "environments_ms": ms["env_s"],
        "prompts_ms": ms["prompt_s"],
        "orchestration_ms": orchestration,
        "event_loop_ms": loop,
        "ray_threads_ms": orchestration - loop,
        "kib_per_episode": (after["memory"] - before["memory"]) / len(played) / 2**10,
    }, played


def usage(runner: MeasuredRunner) -> Row:
    """Return the sums of `MeasuredRunner.usage` over all processes."""
    each = [runner.usage(), *(ray.get(actor.usage.remote()) for actor in runner.actors)]
    return {name: sum(row[name] for row in each) for name in each[0]}


def repeated(played: Sequence[Trajectory], steps: int) -> list[Trajectory]:
    """Return trajectories of at least `steps` steps: those of `played`, in new groups each time."""
    passes = -(-steps // sum(map(len, played)))
    copies = [replace(t, group=f"{t.group}/{number}") for number in range(passes) for t in played]
    steps_before = np.cumsum([0, *map(len, copies[:-1])])
    return copies[: np.searchsorted(steps_before, steps)]


def measure_input(config: RunConfig, played: list[Trajectory]) -> Row:
    """Time the conversion of trajectories to mini-batches, in CPU microseconds per step."""
    gc.collect()
    memory, times = resident(), [time.process_time()]
    scored = score(played, config.algorithm)
    times.append(time.process_time())
    columns = token_columns(played) | signal_columns(scored)
    times.append(time.process_time())
    rng = np.random.default_rng(0)
    size = config.learner.minibatch_size
    parts = sum(1 for _ in minibatches(row_sequences(columns), size, 1, rng))
    times.append(time.process_time())
    steps = len(scored.steps)
    us = [float(1e6 * seconds / steps) for seconds in np.diff(times)]
    return {
        "steps": steps,
        "mini_batches": parts,
        "advantages_us": us[0],
        "columns_us": us[1],
        "mini_batches_us": us[2],
        "seconds": times[-1] - times[0],
        "kib_per_step": (resident() - memory) / steps / 2**10,
    }


def compare_schedules(config: RunConfig, app: str) -> list[Row]:
    """Compare the throughput of the schedules with updates that take as long as a rollout."""
    groups = config.rollout.groups_per_iteration
    rows: list[Row] = []
    update_s = 0.0
    for schedule, staleness in SCHEDULES:
        episodes = (1 + staleness) * groups * config.rollout.group_size
        settings = {"schedule": schedule, "max_staleness": staleness}
        publisher = WeightPublisher(torch.float32, object_store)
        weights = {"weight": torch.zeros(1)}
        with started(config, app, 0, episodes, **settings) as runner:
            # The engine still has the last schedule's weights; its responses would count as stale.
            runner.use_weights(publisher.publish(weights))
            steps, stale, seconds = 0, 0, []
            for update in range(1 + UPDATES):
                start = time.perf_counter()
                played = runner.sample(num_groups=groups)
                if schedule == "one_step_off":
                    runner.sample_ahead(groups)
                if not rows:  # the synchronous schedule: its rollouts set the time of updates
                    update_s = played.seconds
                time.sleep(update_s)
                runner.use_weights(publisher.publish(weights))
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


def figure(rollouts: Sequence[Row]) -> bytes:
    """Return a PNG of how rollouts grow with the number of episodes, a curve per number of runners.

    Args:
        rollouts: the table ``rollouts`` of `bench_scale`.
    """
    runners = sorted({row["runners"] for row in rollouts})
    with mpl.rc_context(style.STYLE):
        drawn, panels = style.grid(len(PLOTTED), 3.0)
        for axes, (key, title) in zip(panels, PLOTTED.items(), strict=True):
            for count in runners:
                rows = [row for row in rollouts if row["runners"] == count]
                axes.loglog([row["episodes"] for row in rows], [row[key] for row in rows], "o-")
            axes.set(title=title, xlabel="concurrent episodes")
        style.legend_above(drawn, [f"{count} env runner processes" for count in runners])
        return style.png(drawn)
