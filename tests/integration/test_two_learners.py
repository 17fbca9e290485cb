"""Two learners in separate processes, without Ray, compared with a single learner."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor, multiprocessing
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from hgpo_rllib.learner import gradients
from hgpo_rllib.learner import learner as learner_module
from hgpo_rllib.learner import module as llm_module
from hgpo_rllib.learner.batching import plan_update
from hgpo_rllib.learner.critic import Critic, make_critic
from hgpo_rllib.learner.data_parallel import rank as rank_now
from hgpo_rllib.models import load_model
from tests.processes import free_port
from tests.unit.learner.learner_reference import SEED, build_learner, make_columns, save_tiny_model

pytestmark = pytest.mark.integration
LEARNERS = 2
UPDATES = 3
COMMON = {"lr": 1e-2, "minibatch_size": 3, "micro_batch_tokens": 20}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two epochs, recomputed": {
        "old_logp": "recomputed",
        "num_epochs": 2,
        "importance_cap": 2.0,
        "drop_zero_advantage": True,
        "kl_coeff": 0,
    },
    "PPO, head": {"estimator": "ppo", "critic": "head"},
    "PPO, separate": {"estimator": "ppo", "critic": "separate"},
    "LoRA": {"lora_rank": 3, "lora_alpha": 6, "kl_coeff": 0.5},
    "offloaded": {"offload_optimizer": True},
    "first dropped": {"minibatch_size": 1, "drop_zero_advantage": True, "kl_coeff": 0},
    # One learner has no step in any mini-batch.
    "a step each": {"minibatch_size": 1},
    "a response each": {
        "minibatch_size": 1,
        "ratio_level": "sequence",
        "old_logp": "recomputed",
        "importance_cap": 2.0,
        "importance_level": "sequence",
    },
}
Outcome = tuple[dict[str, Tensor], dict[str, Any], list[dict[str, float]]]


def load_double(path: str) -> PreTrainedModel:
    """Return the model in float64, where the order of summation does not matter."""
    return load_model(path).double()


def make_double_critic(*arguments: Any) -> Critic | None:
    critic = make_critic(*arguments)
    return critic and critic.double()


def use_double() -> None:
    """Use float64 for all learners that this process builds from now on."""
    llm_module.load_model = learner_module.load_model = load_double
    llm_module.make_critic = make_double_critic


@pytest.fixture
def double() -> Iterator[None]:
    use_double()
    yield
    llm_module.load_model = learner_module.load_model = load_model
    llm_module.make_critic = make_critic


def play(path: str, **chosen: Any) -> Outcome:
    """Return parameters and optimizer after some updates, and the metrics of each update."""
    learner = build_learner(path, **COMMON | chosen)
    logged: list[dict[str, float]] = []
    learner._log = logged.append
    for number in range(UPDATES):
        learner._weights_seq_no += 1
        columns = make_columns(load_double(path), seed=number)
        generator = torch.Generator().manual_seed(number)
        for name in ("value", "value_target"):  # read by a critic only
            columns[name] = torch.randn(len(columns["advantage"]), generator=generator)
        if number and learner._settings.drop_zero_advantage:  # the first mini-batch has no pass
            rng = np.random.default_rng([SEED, learner._weights_seq_no])
            columns["advantage"][plan_update(columns, learner._settings, rng)[0].rows] = 0
        learner._update({DEFAULT_MODULE_ID: columns})
        if number == 0:
            learner.gather_optimizer_state()
            first = [learner._gathered_optimizer]
            if dist.is_initialized():
                dist.broadcast_object_list(first)
        elif number == 1:  # as on a resume
            learner._set_optimizer_state(first[0])
        learner.policy.mark_weights_changed()
        learner.response_logp(np.arange(1, 5), np.arange(5, 8))  # like the check after an update
    if learner._settings.shard_parameters and learner._reference is not None:
        assert all(isinstance(p, DTensor) for p in learner._reference.parameters())
    if learner._settings.critic != "none":
        values = learner.values(columns).tolist()
        logged.append({str(row): value for row, value in enumerate(values)})
    learner.gather_optimizer_state()
    module = learner.policy
    state = module.get_state()
    if rank_now() == 0:
        state |= {f"checkpoint: {name}": tensor for name, tensor in module.model_state().items()}
    return state, learner._gathered_optimizer, logged


@functools.cache
def play_alone(path: str, name: str) -> Outcome:
    """Return the outcome of a single learner."""
    return play(path, **CASES[name])


def play_with_little_memory(
    path: str, rank: int | None, when: str
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Return parameters and metrics after an update whose first mini-batch runs out of memory."""

    def run_out(*_: Any) -> None:
        hook.remove()
        raise torch.OutOfMemoryError("2 GiB more")

    learner = build_learner(path, **COMMON, on_bad_batch="skip")
    logged: list[dict[str, float]] = []
    learner._log = logged.append
    trunk = learner.policy.llm.base_model
    if rank in (None, 1) and when == "forward":
        hook = trunk.register_forward_pre_hook(run_out)
    elif rank in (None, 1):  # when the last layer has its gradients
        hook = trunk.layers[0].register_full_backward_pre_hook(run_out)
    learner._weights_seq_no += 1
    learner._update({DEFAULT_MODULE_ID: make_columns(load_double(path))})
    return learner.policy.state_dict(), logged


def note_reductions(path: str) -> list[list[bool]]:
    """Return, by mini-batch, whether each bucket was reduced within a backward pass."""
    learner = build_learner(path, **COMMON | {"micro_batch_tokens": 10})
    mini_batches: list[list[bool]] = []
    begin, reduce_next = learner._gradients.begin, learner._gradients._reduce_next

    def note_begin(passes: int) -> None:
        mini_batches.append([])
        begin(passes)

    def note_reduction() -> None:
        mini_batches[-1].append(torch._C._current_graph_task_id() >= 0)
        reduce_next()

    learner._gradients.begin, learner._gradients._reduce_next = note_begin, note_reduction
    learner._weights_seq_no += 1
    learner._update({DEFAULT_MODULE_ID: make_columns(load_double(path), 14)})
    return mini_batches


def work(rank: int, folder: str, port: int) -> None:
    """Run one learner in all cases; the first writes the outcomes."""
    torch.set_num_threads(1)
    gradients.BUCKET_BYTES = 2**14  # the model is larger
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=LEARNERS)
    for sharded in (False, True):  # before float64, which autocast does not convert
        outcome = play(f"{folder}/model", shard_parameters=sharded, compute_dtype="bfloat16")
        if rank == 0:
            torch.save(outcome, f"{folder}/bfloat16-{sharded}.pt")
    use_double()
    for name, chosen in CASES.items():
        for sharded in (False, True):
            outcome = play(f"{folder}/model", shard_parameters=sharded, **chosen)
            if rank == 0:
                torch.save(outcome, f"{folder}/{name}-{sharded}.pt")
    for when in ("forward", "backward"):
        outcome = play_with_little_memory(f"{folder}/model", rank, when)
        torch.save(outcome, f"{folder}/little memory-{when}-{rank}.pt")
    torch.save(note_reductions(f"{folder}/model"), f"{folder}/reductions-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the outcomes of two learners in all cases."""
    folder = tmp_path_factory.mktemp("learners")
    (folder / "model").mkdir()
    save_tiny_model(folder / "model")
    multiprocessing.spawn(work, (str(folder), free_port()), nprocs=LEARNERS)
    return folder


@pytest.mark.parametrize("sharded", [False, True], ids=["copies", "sharded"])
@pytest.mark.parametrize("name", CASES)
def test_two_learners_are_one(folder: Path, double: None, name: str, sharded: bool) -> None:
    """Two learners have a single one's parameters, optimizer and metrics after three updates."""
    state, optimizer, logged = torch.load(folder / f"{name}-{sharded}.pt", weights_only=False)
    alone, alone_optimizer, alone_logged = play_alone(str(folder / "model"), name)
    assert state.keys() == alone.keys()
    for key, tensor in alone.items():
        torch.testing.assert_close(state[key], tensor, rtol=0, atol=1e-9)
    for key, values in alone_optimizer["state"].items():
        for part, tensor in values.items():
            got = optimizer["state"][key][part]
            torch.testing.assert_close(got, tensor, rtol=1e-6, atol=1e-9)
    for update, expected in zip(logged, alone_logged, strict=True):
        assert update == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_shards_in_bfloat16(folder: Path) -> None:
    """In bfloat16, sharded and unsharded learners have the same parameters and metrics."""
    copies, shards = (
        torch.load(folder / f"bfloat16-{sharded}.pt", weights_only=False)
        for sharded in (False, True)
    )
    for key, tensor in copies[0].items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(shards[0][key], tensor, rtol=0, atol=1e-6)
    for update, expected in zip(shards[2], copies[2], strict=True):
        assert update == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_mini_batch_too_large_for_one_is_skipped_by_all(
    folder: Path, double: None, when: str
) -> None:
    """All learners skip the mini-batch, even if some of its gradients are being summed already."""
    alone, (alone_logged,) = play_with_little_memory(str(folder / "model"), None, when)
    assert alone_logged["skipped_batches"] == 1
    for rank in range(LEARNERS):
        file = folder / f"little memory-{when}-{rank}.pt"
        state, (logged,) = torch.load(file, weights_only=False)
        assert logged["skipped_batches"] == 1
        assert logged["loss"] == pytest.approx(alone_logged["loss"])
        for key, tensor in alone.items():
            torch.testing.assert_close(state[key], tensor, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rank", range(LEARNERS))
def test_gradients_are_summed_during_the_last_backward_pass(folder: Path, rank: int) -> None:
    """Each bucket is reduced once per mini-batch, during the last backward pass."""
    mini_batches = torch.load(folder / f"reductions-{rank}.pt", weights_only=False)
    (buckets,) = {len(inside) for inside in mini_batches}
    assert len(mini_batches) > 1
    assert buckets > 2
    assert all(all(inside) for inside in mini_batches)


def test_parameters_have_moved(folder: Path, double: None) -> None:
    """Updates change all parameters, so `test_two_learners_are_one` compares different values."""
    state, *_ = torch.load(folder / "defaults-True.pt", weights_only=False)
    start = load_double(str(folder / "model")).state_dict()
    moved = [(state[f"scorer.llm.{k}"] - v).abs().max() for k, v in start.items()]
    assert min(moved) > 1e-3
