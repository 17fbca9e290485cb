"""`hgpo bench learner`: compare the learner's update with a plain PyTorch loop on the same batch.

Each side runs in a separate process. The sides take turns, and alternate in going first. Neither
needs Ray: prompts are those of episodes of a random player, and responses are its actions.
"""

import resource
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Text
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch import torch_learner
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hgpo_rllib.agent import Memory, TokenRenderer, Turn
from hgpo_rllib.algorithm import HGPOConfig
from hgpo_rllib.bench.measure import Tables, new_process, resident
from hgpo_rllib.bench.plain_loop import PlainLoop
from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments.checks import make_environment
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.batching import (
    Columns,
    last_rows,
    micro_batches,
    plan_update,
    token_batch,
    token_columns,
)
from hgpo_rllib.learner.data_parallel import local_micro_batches
from hgpo_rllib.learner.module import token_log_probs
from hgpo_rllib.models import load_model, load_tokenizer
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.learner import ComputeDtype, resolve_compute_dtype

Side = tuple[Callable[[], None], Callable[[], Iterable[Tensor]]]
SEED = 0
PASS_TOKENS = 4096
PRODUCTS = 10


def bench_learner(run: RunConfig, steps: int, repeats: int) -> Tables:
    """Update the run's model `repeats` times with each side; data and model must exist.

    Returns:
        ``updates``, one row per turn, and ``summary``: the peak memory of each side (of the GPU, or
        of the process beyond its memory when built), the tokens of the learner's passes (in
        conversations fewer than those of all prompts and responses) and their share of padding,
        the largest difference between the parameters of both sides after all turns, and the speed
        of the learner's median update as a share of that of large matrix products on the device.

    Raises:
        ConfigError: the plain loop lacks a setting.
    """
    check(run)
    columns = random_steps(run, steps)
    tokens = int((columns["prompt_length"] + columns["response_length"]).sum())
    with new_process() as plain, new_process() as learner:
        for process, build in ((plain, build_plain_loop), (learner, build_learner)):
            process.submit(start, build, run, columns).result()
        plain.submit(update).result()  # warm-up of torch
        flops = learner.submit(count_flops).result()
        turns, sides = [], {"plain": plain, "learner": learner}
        for _ in range(repeats):
            seconds = {name: side.submit(update).result() for name, side in sides.items()}
            turns.append(seconds)
            sides = dict(reversed(sides.items()))  # alternate which side goes first
        expected, got = plain.submit(parameters).result(), learner.submit(parameters).result()
        speed = flops / median(turn["learner"] for turn in turns)
        peaks = {name: side.submit(peak_mib).result() for name, side in sides.items()}
        device_speed = learner.submit(peak_flops, run.learner.compute_dtype).result()  # after peaks
        summary = {
            "steps": steps,
            "plain_peak_mib": peaks["plain"],
            "learner_peak_mib": peaks["learner"],
            **planned_passes(run, columns),
            "parameters_differ_by": float(np.abs(expected - got).max()),
            "matrix_products_gflop_per_s": device_speed / 1e9,
            "learner_share_of_it": speed / device_speed,
        }
    updates = [
        {
            "tokens": tokens,
            "plain_tokens_per_s": tokens / turn["plain"],
            "learner_tokens_per_s": tokens / turn["learner"],
            "ratio": turn["plain"] / turn["learner"],
        }
        for turn in turns
    ]
    return {"updates": updates, "summary": [summary]}


def check(run: RunConfig) -> None:
    """Raise ConfigError for settings that the plain loop lacks."""
    for setting, used, default in (
        ("model.lora_rank", run.model.lora_rank > 0, "0"),
        ("learner.critic", run.learner.critic != "none", "none"),
        ("learner.shard_parameters", run.learner.shard_parameters, "false"),
        ("learner.old_logp", run.learner.old_logp != "behavior", "behavior"),
        ("learner.entropy_coeff", run.learner.entropy_coeff > 0, "0"),
        ("learner.ratio_level", run.learner.ratio_level != "token", "token"),
        ("learner.policy_loss", run.learner.policy_loss != "ppo", "ppo"),
        ("learner.dual_clip", run.learner.dual_clip is not None, "null"),
        ("learner.kl_estimator", run.learner.kl_estimator != "k3", "k3"),
        ("learner.loss_aggregation", run.learner.loss_aggregation != "token-mean", "token-mean"),
    ):
        if used:
            raise ConfigError(f"{setting}: the plain loop does without: set {setting}={default}")


def random_steps(run: RunConfig, steps: int) -> Columns:
    """Return steps of a random player with random advantages as columns of a training batch."""
    tokenizer, rng = load_tokenizer(str(run.model.model_path)), np.random.default_rng(SEED)
    renderer = TokenRenderer(tokenizer, run.agent)
    env: Any = make_environment(run.env, run.env.train_split)
    played: list[Trajectory] = []
    over, memory = True, Memory()
    for _ in range(steps):
        if over:
            observation, info = env.reset(seed=int(rng.integers(2**31)))
            played.append(Trajectory(info, []))
            memory = Memory()
        offered = info["admissible_actions"]
        own = renderer.for_task(info)
        prompt = own.prompt(info["goal"], observation, offered, memory).token_ids
        action = str(rng.choice(offered))
        ids = renderer.encode(f"<think>{action}</think><action>{action}</action>")
        ids = ids[: run.agent.max_response_tokens]
        turn = Turn(
            observation,
            action,
            number=len(memory.turns) + 1,
            prompt_ids=np.asarray(prompt, np.int32),
            response_ids=np.asarray(ids, np.int32),
            behavior_logp=np.zeros(len(ids), np.float32),
        )
        memory.turns.append(turn)
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        step = Step(turn, observation, reward, terminated, truncated, info, env_s=0.0)
        played[-1].steps.append(step)
    env.close()
    advantage = torch.from_numpy(rng.standard_normal(steps).astype(np.float32))
    columns = token_columns(played) | {"advantage": advantage}
    return columns | {"behavior_logp": behavior_logp(run, columns)}


def behavior_logp(run: RunConfig, columns: Columns) -> Tensor:
    """Compute the model's log-probabilities of the responses."""
    model = load_model(str(run.model.model_path))
    lengths = (columns["prompt_length"] + columns["response_length"]).numpy()
    logp = torch.zeros(columns["response_ids"].shape)
    with torch.no_grad():
        for part in micro_batches(np.arange(len(lengths)), lengths, PASS_TOKENS):
            tokens = token_batch(columns, part, torch.device("cpu"))
            got = token_log_probs(model, tokens, run.rollout.temperature)["logp"]
            logp[tokens["row"], tokens["offset"]] = got
    return logp


def planned_passes(run: RunConfig, columns: Columns) -> dict[str, float]:
    """Return the tokens of the first update's forward passes without padding, and its share."""
    lengths = (columns["prompt_length"] + columns["response_length"]).numpy()
    plan = plan_update(columns, run.learner, np.random.default_rng([run.seed, 1]))
    parts = [
        part
        for batch in plan
        for part in local_micro_batches(columns, batch.trained, lengths, run.learner)
    ]
    kept = [lengths[last_rows(columns, part)[0]] for part in parts]
    padded = sum(len(part) * int(part.max()) for part in kept)
    tokens = int(sum(part.sum() for part in kept))
    return {"learner_tokens": tokens, "padding": 1 - tokens / padded}


def build_learner(run: RunConfig, columns: Columns) -> Side:
    """Build the RLlib learner like the algorithm; return its update and its parameters."""
    spaces = {DEFAULT_MODULE_ID: (Text(1), Text(1))}  # any: the module reads tokens
    if run.cluster.learner_gpus:  # RLlib would ask Ray for the device, which starts Ray
        torch_learner.get_device = lambda *_: torch.device("cuda")
    learner = HGPOConfig.from_run_config(run).build_learner(spaces=spaces)

    def update_once() -> None:
        learner._weights_seq_no += 1
        learner._update({DEFAULT_MODULE_ID: columns})

    return update_once, learner.policy.parameters


def build_plain_loop(run: RunConfig, columns: Columns) -> Side:
    """Build the plain loop; return its update and its parameters."""
    device = torch.device("cuda" if run.cluster.learner_gpus else "cpu")
    loop = PlainLoop(run, columns, device)
    return loop.update, loop.model.parameters


# The code below runs in the process of one side.
_side: dict[str, Any] = {}


def start(build: Callable[..., Side], run: RunConfig, columns: Columns) -> None:
    """Build this process's side."""
    _side["update"], _side["parameters"] = build(run, columns)
    _side["before"] = 0 if torch.cuda.is_initialized() else resident()


def update() -> float:
    """Run one update and return its duration in seconds."""
    begin = time.perf_counter()
    _side["update"]()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def count_flops() -> int:
    """Run one update and return the FLOPs of its matrix products."""
    with FlopCounterMode(display=False) as counter:
        _side["update"]()
    return counter.get_total_flops()


def peak_flops(choice: ComputeDtype) -> float:
    """Return the FLOP/s of a large matrix product in the type of passes, the best of `PRODUCTS`."""
    on_gpu = torch.cuda.is_initialized()
    dtype = resolve_compute_dtype(choice, on_gpu)
    size, device = (8192, "cuda") if on_gpu else (2048, "cpu")
    left, right = torch.rand(2, size, size, dtype=getattr(torch, dtype), device=device)
    seconds = []
    for _ in range(PRODUCTS):
        begin = time.perf_counter()
        torch.mm(left, right)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds)


def peak_bytes() -> int:
    """Return the peak memory of this process: of the GPU if one is used, else of the host."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


def peak_mib() -> float:
    """Return the peak memory of the update, on the host beyond the memory when built."""
    return (peak_bytes() - _side["before"]) / 2**20


def parameters() -> NDArray[np.float32]:
    """Return all parameters in one flat array."""
    with torch.no_grad():
        return np.concatenate([p.cpu().numpy().ravel() for p in _side["parameters"]()])
