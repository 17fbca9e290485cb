"""Weight updates without Ray: published form, transfer to an engine, version comparison."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.models import checkpoint_form
from hgpo_rllib.policy_server.publisher import servable_weights
from hgpo_rllib.policy_server.transfer import mapped_tensors, shared_with_engine
from hgpo_rllib.policy_server.types import (
    STARTING_WEIGHTS,
    PublishedWeights,
    WeightTag,
)

SOMEWHERE = ray.ObjectRef.nil()


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest) -> Qwen2ForCausalLM:
    """Return a random model."""
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=32,
        tie_word_embeddings=request.param,
    )
    return Qwen2ForCausalLM(config)


def weights_of(model: Qwen2ForCausalLM, dtype: torch.dtype) -> PublishedWeights:
    return servable_weights(checkpoint_form(model.state_dict(), model.config), dtype)


def test_a_tied_head_is_left_out(model: Qwen2ForCausalLM) -> None:
    names = set(weights_of(model, torch.float32).tensors)
    tied = model.config.tie_word_embeddings
    assert set(model.state_dict()) - names == ({"lm_head.weight"} if tied else set())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mapped_tensors_equal_the_weights(model: Qwen2ForCausalLM, dtype: torch.dtype) -> None:
    """Mapped tensors equal the weights, and their path is deleted after the block."""
    state = model.state_dict()

    async def share_and_compare() -> Path:
        async with shared_with_engine(weights_of(model, dtype)) as arguments:
            mapped = dict(mapped_tensors(**arguments))
            assert len(mapped) == len(state) - model.config.tie_word_embeddings
            for name, tensor in mapped.items():
                assert tensor.dtype is dtype
                assert torch.equal(tensor, state[name].to(dtype))
            return Path(arguments["path"])

    path = asyncio.run(share_and_compare())
    assert str(os.getpid()) in path.parts
    assert not path.exists()


@pytest.mark.parametrize(
    ("wanted", "held", "loads"),
    [
        (WeightTag("a", 2, SOMEWHERE), WeightTag("a", 1, SOMEWHERE), True),
        (WeightTag("a", 1, SOMEWHERE), WeightTag("a", 1, SOMEWHERE), False),
        (WeightTag("a", 1, SOMEWHERE), WeightTag("a", 2, SOMEWHERE), False),
        (WeightTag("b", 1, SOMEWHERE), WeightTag("a", 2, SOMEWHERE), True),
        (WeightTag("a", 1, SOMEWHERE), STARTING_WEIGHTS, True),
        (STARTING_WEIGHTS, WeightTag("a", 1, SOMEWHERE), False),
        (STARTING_WEIGHTS, STARTING_WEIGHTS, False),
    ],
)
def test_which_weights_are_loaded(wanted: WeightTag, held: WeightTag, loads: bool) -> None:
    assert wanted.replaces(held) is loads


def output(*versions: tuple[str, int, int]) -> Any:
    """Return vLLM's output for three tokens."""
    return SimpleNamespace(
        token_ids=[5, 6, 7],
        logprobs=[{token: SimpleNamespace(logprob=-1.0)} for token in (5, 6, 7)],
        finish_reason="stop",
        weight_versions=[
            SimpleNamespace(version=version, start=start, end=end)
            for version, start, end in versions
        ],
    )


def test_versions_of_a_response() -> None:
    """A response has the versions that vLLM recorded; `default` are the starting weights."""
    from hgpo_rllib.policy_server.vllm_engine import generation

    whole = generation(output(("a:1", 0, 3)), 0.1)
    assert (whole.version, whole.versions) == ("a:1", ())
    mixed = generation(output(("default", 0, 1), ("a:1", 1, 3)), 0.1)
    assert (mixed.version, mixed.versions) == ("a:1", (("start:0", 1), ("a:1", 2)))
