"""Passes without padding equal padded ones; the kernel of GPUs is replaced by a plain function."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from hgpo_rllib.learner import packing
from hgpo_rllib.learner.batching import token_batch
from hgpo_rllib.learner.learner import HGPOLearner
from tests.unit.learner.learner_reference import (
    QWEN,
    add_values,
    critic_of,
    llm_of,
    make_columns,
    make_learner,
    model_path,
    one_thread,
    update,
)

__all__ = ["model_path", "one_thread"]  # fixtures
CPU = torch.device("cpu")
UNPADDED = {"unpadded_attention": True}
COMMON: dict[str, Any] = {"lr": 1e-2, "minibatch_size": 4, "micro_batch_tokens": 30} | UNPADDED
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "recomputed": {"old_logp": "recomputed", "num_epochs": 2},
    "entropy, checkpointing": {"entropy_coeff": 0.1, "gradient_checkpointing": True},
    "LoRA": {"lora_rank": 3, "lora_alpha": 6, "kl_coeff": 0.5},
    "PPO, head": {"estimator": "ppo", "critic": "head"},
    "PPO, separate": {"estimator": "ppo", "critic": "separate"},
}


def plain_varlen(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, ends: Tensor, *longest: int, **k: Any
) -> Tensor:
    """What torch documents of `varlen_attn`, with the arguments that the learner gives it."""
    assert k.keys() == {"scale", "window_size", "enable_gqa"}
    assert (k["window_size"], k["enable_gqa"]) == ((-1, 0), True)  # causal, heads in groups
    assert query.dtype == key.dtype == value.dtype
    assert starts is ends
    assert starts.dtype == torch.int32
    sizes = starts.diff().tolist()
    assert (int(starts[0]), int(starts[-1])) == (0, len(query))
    assert longest == (max(sizes), max(sizes))
    rows = []
    for q, k_row, v in zip(query.split(sizes), key.split(sizes), value.split(sizes), strict=True):
        groups = q.shape[1] // k_row.shape[1]
        k_row, v = (part.repeat_interleave(groups, 1) for part in (k_row, v))
        scores = torch.einsum("qhd,khd->hqk", q, k_row) * k["scale"]
        scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
    return torch.cat(rows)


@pytest.fixture
def packed_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let passes be packed from now on; returns the number of tokens of each layer's pass."""
    tokens: list[int] = []

    def count(query: Tensor, *arguments: Any, **options: Any) -> Tensor:
        tokens.append(len(query))
        return plain_varlen(query, *arguments, **options)

    monkeypatch.setattr(packing, "has_kernel", lambda _: True)
    monkeypatch.setattr(packing, "varlen_attn", count)
    return tokens


def outcome(learner: HGPOLearner) -> dict[str, Tensor]:
    """Last gradients and parameters of an update, and what it logged."""
    logged: dict[str, float] = {}
    learner._log = logged.update
    batch = make_columns(llm_of(make_learner(learner.config.model_path)), 12)
    if critic_of(learner) is not None:
        batch = add_values(batch, learner)
    update(learner, batch)
    named = {n: p for n, p in learner.policy.named_parameters() if p.requires_grad}
    result = {f"gradient of {n}": p.grad for n, p in named.items()}
    result |= {n: p.detach() for n, p in named.items()}
    return result | {n: torch.tensor(v, dtype=torch.float64) for n, v in logged.items()}


@pytest.mark.parametrize("name", CASES)
def test_an_update_without_padding(
    model_path: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Gradients, parameters and metrics of three mini-batches."""
    learner = make_learner(model_path, **COMMON | CASES[name])
    learner.policy.train()  # for gradient checkpointing
    padded = outcome(learner)
    tokens = request.getfixturevalue("packed_tokens")
    learner = make_learner(model_path, **COMMON | CASES[name])
    learner.policy.train()
    packed = outcome(learner)
    assert tokens
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-6)


def test_log_probabilities_and_tokens(model_path: str, packed_tokens: list[int]) -> None:
    """No token of a pass is padding, and no row sees another."""
    learner = make_learner(model_path, **UNPADDED)
    columns = make_columns(llm_of(learner), 7)
    batch = token_batch(columns, np.arange(7), CPU)
    padded = dict(batch)
    del padded["length"]
    with torch.no_grad():
        got, expected = (learner.policy.forward_train(b) for b in (batch, padded))
    for key in ("logp", "entropy"):
        torch.testing.assert_close(got[key], expected[key], rtol=0, atol=1e-12)
    lengths = columns["prompt_length"] + columns["response_length"]
    assert packed_tokens == QWEN.num_hidden_layers * [int(lengths.sum())]
    assert lengths.sum() < batch["ids"].numel()


def test_passes_on_a_cpu_are_padded(model_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any type."""
    monkeypatch.delattr(packing, "varlen_attn")
    for dtype in ("float32", "bfloat16"):
        learner = make_learner(model_path, compute_dtype=dtype, **UNPADDED)
        update(learner, make_columns(llm_of(learner)))


def test_passes_are_padded_by_default(model_path: str, packed_tokens: list[int]) -> None:
    """The model keeps transformers' attention."""
    learner = make_learner(model_path)
    update(learner, make_columns(llm_of(learner)))
    assert llm_of(learner).config._attn_implementation == "sdpa"
    assert packed_tokens == []


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        (QWEN, True),
        (Qwen2Config(), True),
        (Qwen3Config(), True),
        (LlamaConfig(), True),
        (Qwen2Config(use_sliding_window=True, sliding_window=4, max_window_layers=0), False),
        (MistralConfig(sliding_window=4), False),
        (LlamaConfig(attention_dropout=0.1), False),
        (LlamaConfig(head_dim=20), False),
        (LlamaConfig(head_dim=512), False),
    ],
)
def test_models_whose_attention_the_kernel_computes(config: Any, plain: bool) -> None:
    """Others stay padded."""
    assert packing._is_plain(config) is plain


def test_the_kernel_takes_the_arguments() -> None:
    """Torch's own function, on tensors without values: shapes, and gradients of their types."""
    heads = {"query": 4, "key": 2, "value": 2}
    parts = {
        name: torch.randn(1, count, 10, 16, device="meta", requires_grad=True)
        for name, count in heads.items()
    }
    ends = torch.tensor([0, 4, 10], dtype=torch.int32, device="meta")
    out, _ = packing.packed_attention(
        torch.nn.Module(),
        **{name: part.bfloat16() if name == "value" else part for name, part in parts.items()},
        attention_mask=None,
        scaling=0.25,
        cu_seq_lens_q=ends,
        max_length_q=6,
    )
    assert (out.shape, out.dtype) == ((1, 10, 4, 16), torch.bfloat16)
    out.sum().backward()
    for part in parts.values():
        assert part.grad is not None
        assert part.grad.shape == part.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_on_a_gpu() -> None:
    """Equals transformers' attention of each row, in bfloat16."""
    query, key, value = (
        torch.randn(1, heads, 10, 16, device="cuda", dtype=torch.bfloat16) for heads in (4, 2, 2)
    )
    ends = torch.tensor([0, 4, 10], dtype=torch.int32, device="cuda")
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    options = {"attention_mask": None, "scaling": 0.25}
    got, _ = packing.packed_attention(
        module, query, key, value, cu_seq_lens_q=ends, max_length_q=6, **options
    )
    for row in (slice(0, 4), slice(4, 10)):
        parts = (part[:, :, row] for part in (query, key, value))
        expected, _ = sdpa_attention_forward(module, *parts, **options)
        torch.testing.assert_close(got[:, row], expected, rtol=0, atol=0.02)
