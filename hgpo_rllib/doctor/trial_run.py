"""All checks of `hgpo doctor`: of the machine, then of a short run with every process."""

import resource
import time
from collections.abc import Iterator

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from transformers.utils import logging as transformers_logging

from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.bench.learner import peak_flops
from hgpo_rllib.config import RunConfig
from hgpo_rllib.doctor.machine import GIB, Check, machine_checks
from hgpo_rllib.learner.batching import Columns, pad_rows
from hgpo_rllib.learner.distribution import on_learners, whole_batch
from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.models import load_tokenizer
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run import estimate
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.flops import full_turn, update_flop
from hgpo_rllib.run.model_size import ModelSize, find_size
from hgpo_rllib.run.trainer import prepare_inputs
from hgpo_rllib.run.trial import describe
from hgpo_rllib.settings.learner import ComputeDtype

GAP = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of log-probabilities of a probe between engine and learner, by dtype."""
REPEATS = 2  # iterations and learner steps; the first one warms up engine and learner


def examine(config: RunConfig, console: TrainingConsole) -> Iterator[Check]:
    """Yield the checks of the machine and, if they find no problem, those of a short run."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model, healthy = find_size(config), True
    for check in machine_checks(config, model):
        healthy = healthy and check.problem is None
        yield check
    if not healthy:
        yield Check("short run", "not started", "solve the problems above first")
        return
    try:
        config = prepare_inputs(config, console)
        with ray_cluster(config):
            yield from _trial_checks(config, model)
    except Exception as error:  # any error here would end a real run
        yield Check("short run", "failed", describe(error))


def _trial_checks(config: RunConfig, model: ModelSize | None) -> Iterator[Check]:
    """Start a short version of the run, and yield what works and how fast."""
    start = time.perf_counter()
    algorithm = HGPOConfig.from_run_config(short(config)).build_algo()
    try:
        yield Check("engine and learner", f"started in {time.perf_counter() - start:.0f} s")
        yield from _iteration(config, algorithm)
        yield from _learner_step(config, model, algorithm)
    finally:
        algorithm.stop()


def short(config: RunConfig) -> RunConfig:
    """Return the settings with few short episodes, without alarms about made-up responses."""
    size = min(2, config.rollout.group_size)
    rollout = config.rollout.model_copy(update={"groups_per_iteration": 2, "group_size": size})
    env = config.env.model_copy(update={"max_steps": min(3, config.env.max_steps)})
    learner = config.learner.model_copy(update={"mismatch_alarm": None})
    return config.model_copy(update={"rollout": rollout, "env": env, "learner": learner})


def _iteration(config: RunConfig, algorithm: HGPO) -> Iterator[Check]:
    for _ in range(REPEATS):
        algorithm.train()
    iteration = algorithm.last_iteration
    assert iteration is not None, "train() sets it"
    turns = [turn for played in iteration.scored.trajectories for turn in played.turns]
    sampled = sum(len(turn.response_ids) for turn in turns)
    seconds = iteration.seconds["rollout_s"]
    yield Check("rollout", f"{sampled / seconds:,.0f} sampled tokens/s in {len(turns)} short turns")
    gap, limit = iteration.statistics["served_learner_logp_gap"], GAP[config.model.dtype]
    problem = None
    if not gap <= limit:
        problem = f"above {limit:g}: the engine does not generate with the learner's weights"
    taken = iteration.seconds["sync_s"]
    found = f"in {taken:.1f} s; log-probabilities differ from the learner's by {gap:.2g}"
    yield Check("weight update", found, problem)


def _learner_step(config: RunConfig, model: ModelSize | None, algorithm: HGPO) -> Iterator[Check]:
    """Update on rows of full length, and compare memory and speed with estimate and device."""
    turn, group = full_turn(config), algorithm.learner_group
    count = max(1, config.learner.micro_batch_tokens // turn.tokens)
    count *= max(1, config.cluster.num_learners)
    columns = full_rows(config, count)
    batch = MultiAgentBatch({DEFAULT_MODULE_ID: SampleBatch(columns)}, env_steps=count)
    for _ in range(REPEATS):
        start = time.perf_counter()
        group.update(training_data=whole_batch(group, batch))
        seconds = time.perf_counter() - start
    speed = count * turn.tokens / seconds
    found = f"{speed:,.0f} tokens/s with {count} turns of {turn.tokens:,} tokens"
    if model is not None:
        flop = update_flop(config, model, turn, count) * count / max(1, config.cluster.num_learners)
        device = on_learners(group, _device_flops, config.learner.compute_dtype)
        found += f", {flop / seconds / device:.0%} of the device's matrix products"
    yield Check("learner step", found)
    if model is not None:
        items = estimate.memory(config, model)
        process = estimate.LEARNER if config.cluster.num_learners else estimate.MAIN
        expected = sum(item.size for item in items if item.process == process)
        measured = on_learners(group, _peak_bytes)
        yield Check(
            "learner memory",
            f"{measured / GIB:.1f} GiB at most; estimated {expected / GIB:.1f} plus torch and Ray",
        )


def full_rows(config: RunConfig, count: int) -> Columns:
    """Return random turns of full length as columns of a training batch."""
    turn, rng = full_turn(config), np.random.default_rng(0)
    size = len(load_tokenizer(str(config.model.model_path)))
    prompts, responses = rng.integers(size, size=(2, count, max(turn.prompt, turn.response)))
    rows = {"prompt_ids": prompts[:, : turn.prompt], "response_ids": responses[:, : turn.response]}
    columns = {name: pad_rows(list(ids.astype(np.int32))) for name, ids in rows.items()}
    columns["prompt_length"] = torch.full((count,), turn.prompt)
    columns["response_length"] = torch.full((count,), turn.response)
    columns["advantage"] = torch.from_numpy(rng.standard_normal(count).astype(np.float32))
    # Probability 1, so that no token ratio is above 1.
    columns["behaviour_logp"] = torch.zeros(columns["response_ids"].shape)
    if config.learner.critic != "none":
        columns["value"] = columns["value_target"] = torch.zeros(count)
    return columns


def _device_flops(learner: HGPOLearner, dtype: ComputeDtype) -> float:
    return peak_flops(dtype)


def _peak_bytes(learner: HGPOLearner) -> int:
    """Return the peak memory of the learner's process: of the GPU, else of the host."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
