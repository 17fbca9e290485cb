"""Estimates of a run's memory, against manual computations and against a real update."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor
from transformers import Qwen2ForCausalLM

from hgpo_rllib.config import RunConfig
from hgpo_rllib.learner.lora import add_lora
from hgpo_rllib.run import estimate
from hgpo_rllib.run.model_size import ModelSize, find_size
from tests.unit.learner.learner_reference import build_learner
from tests.unit.run.model_sizes import TINY, run, tiny_qwen
from tests.unit.run.peak_memory import PeakMemory

GIB = 2**30


def sizes(config: RunConfig, shape: ModelSize, process: str) -> dict[str, int]:
    """Return the parts of one process's memory."""
    return {i.what: i.size for i in estimate.memory(config, shape) if i.process == process}


class TestMemory:
    def test_the_learner(self) -> None:
        """A learner takes 20 bytes per parameter with a reference, plus one full-length turn."""
        shape = find_size(run())
        assert shape is not None
        parts = sizes(run(learner={"micro_batch_tokens": 4608}), shape, estimate.MAIN)
        parameters = 1_543_714_304
        assert parts == {
            "weights, float32": 4 * parameters,
            "gradients, float32": 4 * parameters,
            "AdamW's two moments, float32": 8 * parameters,
            "reference model, float32": 4 * parameters,
            "gradient of the head before it is added": 4 * 1536 * 151936,
            "activations of 4,608 tokens": 4608 * 28 * (8 * 1536 + 2 * 256 + 4 * 8960) * 4,
            "logits of 512 response tokens": 3 * 512 * 151936 * 4,
        }
        assert round(sum(parts.values()) / GIB, 1) == 53.9

    def test_without_kl_there_is_no_reference(self) -> None:
        """Without a KL term, no reference model is counted, as the learner loads none."""
        parts = sizes(run(learner={"kl_coeff": 0}), TINY, estimate.MAIN)
        assert not any("reference" in what for what in parts)

    @pytest.mark.parametrize("kind", ["head", "separate"])
    def test_a_critic(self, kind: str) -> None:
        """A separate critic is a second model that reads prompts; a head adds nothing."""
        ppo = {"algorithm": {"estimator": "ppo"}, "learner": {"critic": kind}}
        untied = ModelSize(tiny_qwen(tie_word_embeddings=False))
        without = sizes(run(), untied, estimate.MAIN)
        extra = {
            what: size - without.get(what, 0)
            for what, size in sizes(run(**ppo), untied, estimate.MAIN).items()
            if size != without.get(what)
        }
        prompts = 16384 - 16384 * 512 // 4608
        expected = {
            "weights of the critic, float32": 4 * TINY.parameters,
            "gradients, float32": 4 * TINY.parameters,
            "AdamW's two moments, float32": 8 * TINY.parameters,
            f"critic: activations of {prompts:,} prompt tokens": TINY.activation_bytes(prompts),
        }
        assert extra == (expected if kind == "separate" else {})

    def test_a_critic_and_long_responses(self) -> None:
        """Tokens of responses whose logits are not in memory at once are no tokens of prompts."""
        agent = {"max_prompt_tokens": 1024, "max_response_tokens": 1024}
        config = run(agent=agent, algorithm={"estimator": "ppo"}, learner={"critic": "separate"})
        shape = find_size(config)
        assert shape is not None
        parts = sizes(config, shape, estimate.MAIN)
        assert f"logits of {shape.tokens_at_once:,} response tokens" in parts
        assert "critic: activations of 8,192 prompt tokens" in parts

    def test_a_critic_of_tokens_with_few_layers(self) -> None:
        """The critic reads whole turns and has the size of a model with `critic_layers` layers."""
        learner = {"critic": "separate", "critic_layers": 1}
        config = run(algorithm={"estimator": "vetta"}, learner=learner)
        small = ModelSize(tiny_qwen(num_hidden_layers=1))
        parts = sizes(config, TINY, estimate.MAIN)
        assert parts["weights of the critic, float32"] == 4 * small.trunk_parameters
        assert parts["gradients, float32"] == 4 * (TINY.parameters + small.trunk_parameters)
        activations = small.activation_bytes(16384)
        assert parts["critic: activations of 16,384 tokens"] == activations
        assert TINY.first_layers(99) is TINY.first_layers(None) is TINY

    def test_a_turn_longer_than_the_budget_has_a_micro_batch_of_its_own(self) -> None:
        """A turn is not split, even if it exceeds the budget."""
        parts = sizes(run(learner={"micro_batch_tokens": 100}), TINY, estimate.MAIN)
        assert "activations of 4,608 tokens" in parts

    def test_a_replica_on_a_gpu(self) -> None:
        """A replica holds weights in the served type and a KV cache for full-length sequences."""
        server = {"replica_gpus": 1, "max_num_seqs": 8, "memory_utilization": 0.5}
        config = run(policy_server=server)
        weights, cache = 2 * TINY.parameters, 8 * 4608 * 2 * 3 * 32 * 2
        assert sizes(config, TINY, estimate.REPLICA) == {
            "weights, bfloat16": weights,
            "KV cache of 8 sequences of 4,608 tokens": cache,
        }
        assert estimate.smallest_gpu(config, TINY) == 2 * (weights + cache + GIB)
        two = run(policy_server=server | {"replica_gpus": 2, "tensor_parallel_size": 2})
        # The model has one head of keys and values, which both GPUs hold.
        assert estimate.smallest_gpu(two, TINY) == weights + 2 * cache + 2 * GIB

    def test_a_replica_on_a_cpu(self) -> None:
        """The size of the KV cache is a setting."""
        config = run(policy_server={"cpu_kv_cache_gib": 3}, model={"dtype": "float32"})
        parts = sizes(config, TINY, estimate.REPLICA)
        assert parts["KV cache (cpu_kv_cache_gib)"] == 3 * GIB
        assert parts["weights, float32"] == 4 * TINY.parameters

    def test_published_weights(self) -> None:
        """The object store holds two versions, and each replica that loads weights holds a copy."""
        config = run(policy_server={"num_replicas": 3})
        assert sizes(config, TINY, "published weights") == {
            "2 versions of the weights in Ray's object store, bfloat16": 2 * 2 * TINY.parameters,
        }
        assert sizes(config, TINY, "weights that are being loaded") == {
            "replicas: 3, one copy each, bfloat16": 3 * 2 * TINY.parameters
        }

    def test_weights_between_gpus(self) -> None:
        """With NCCL, the learner keeps a version on its GPU, and host memory holds none."""
        cluster = {"num_learners": 1, "learner_gpus": 1}
        config = run(cluster=cluster, policy_server={"weight_transport": "nccl", "replica_gpus": 1})
        parts = sizes(config, TINY, estimate.LEARNER)
        assert parts["published weights, bfloat16"] == 2 * TINY.parameters
        assert {i.process for i in estimate.memory(config, TINY)} == {
            estimate.LEARNER,
            estimate.REPLICA,
            "first learner",
            "checkpoint",
        }
        assert sum(sizes(config, TINY, "checkpoint").values()) == 4 * TINY.parameters

    def test_the_weights_of_a_checkpoint(self) -> None:
        """A learner process sends them in float32, when the object store holds one version."""
        config = run(cluster={"num_learners": 1})
        stored = [i.size for i in estimate.memory(config, TINY) if i.where == "/dev/shm"]
        assert sum(stored) == (2 + 4) * TINY.parameters
        assert sizes(run(), TINY, "checkpoint") == {}

    def test_where_it_lies(self) -> None:
        """Processes with a GPU use its memory, all others the memory of the host."""
        cluster = {"num_learners": 1, "learner_gpus": 1}
        gpus = run(cluster=cluster, policy_server={"replica_gpus": 0.5})
        places = {i.process: i.where for i in estimate.memory(gpus, TINY)}
        assert places[estimate.LEARNER] == places[estimate.REPLICA] == "GPU"
        places = {i.process: i.where for i in estimate.memory(run(), TINY)}
        assert places[estimate.MAIN] == places[estimate.REPLICA] == "host"


def test_several_learners() -> None:
    """Each learner process is counted; with sharding, each holds a part of the parameters."""
    cluster = {"num_learners": 2, "learner_gpus": 1}
    whole = sizes(run(cluster=cluster), TINY, estimate.LEARNER)
    sharded = run(cluster=cluster, learner={"shard_parameters": True})
    parts = sizes(sharded, TINY, estimate.LEARNER)
    for what in ("weights, float32", "AdamW's two moments, float32"):
        assert parts[what] == whole[what] / 2
    saved = {"moments of a checkpoint, float32": 8 * TINY.parameters}
    assert sizes(sharded, TINY, "first learner") == saved | {
        "whole weights, float32": 4 * TINY.parameters
    }
    saved = {"weights and moments of a checkpoint, float32": 12 * TINY.parameters}
    assert sizes(run(cluster=cluster), TINY, "first learner") == saved
    assert sizes(run(cluster={"num_learners": 2}), TINY, "first learner") == {}


def test_adapters() -> None:
    """Adapters have peft's size; only they have gradients, and no reference is counted."""
    model = Qwen2ForCausalLM(tiny_qwen())
    add_lora(model, 5, 32, 0)
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert TINY.adapter_parameters(5) == adapters
    parts = sizes(run(model={"lora_rank": 5}), TINY, estimate.MAIN)
    assert parts["gradients, float32"] == 4 * adapters
    assert parts["weights, float32"] == 4 * (TINY.parameters + adapters)
    assert not any("reference" in what for what in parts)
    assert (
        sum(sizes(run(model={"lora_rank": 5}), TINY, "published weights").values()) == 4 * adapters
    )
    on_gpu = run(model={"lora_rank": 5}, cluster={"num_learners": 1, "learner_gpus": 1})
    assert sizes(on_gpu, TINY, f"first {estimate.LEARNER}") == {
        "whole weights, float32": 4 * TINY.parameters,
        "weights and moments of a checkpoint, float32": 12 * adapters,
    }


def test_bfloat16_on_a_gpu() -> None:
    """In bfloat16, reference and activations are smaller, and a pass converts its matrices."""
    gpu = sizes(run(cluster={"learner_gpus": 1, "num_learners": 1}), TINY, estimate.LEARNER)
    cpu = sizes(run(cluster={"num_learners": 1}), TINY, estimate.LEARNER)
    assert gpu["reference model, bfloat16"] == TINY.frozen_bytes("bfloat16")
    assert gpu["matrices of a pass, bfloat16"] == TINY.converted_bytes("bfloat16")
    tokens = "activations of 16,384 tokens"
    assert gpu[tokens] == TINY.activation_bytes(16384, "bfloat16") < cpu[tokens]
    assert cpu["reference model, float32"] == 4 * TINY.parameters
    assert not any("bfloat16" in what for what in cpu)


def test_offloaded_moments() -> None:
    """Offloaded moments are on the GPU only between passes, so the larger of both counts."""
    agent = {"max_prompt_tokens": 64, "max_response_tokens": 16}

    def on_gpu(tokens: int, offload: bool) -> int:
        learner = {"micro_batch_tokens": tokens, "offload_optimizer": offload}
        cluster = {"learner_gpus": 1, "num_learners": 1}
        items = estimate.memory(run(agent=agent, learner=learner, cluster=cluster), TINY)
        host = [i.size for i in items if i.process == estimate.LEARNER and i.where == "host"]
        assert host == [8 * TINY.parameters] * offload
        return sum(i.size for i in items if i.process == estimate.LEARNER) - sum(host)

    assert on_gpu(8000, offload=False) - on_gpu(8000, offload=True) == 8 * TINY.parameters
    learner = {"micro_batch_tokens": 80}
    config = run(agent=agent, learner=learner, cluster={"learner_gpus": 1, "num_learners": 1})
    one_pass = sum(estimate._one_pass(config, TINY).values())
    assert one_pass < 8 * TINY.parameters
    assert on_gpu(80, offload=False) - on_gpu(80, offload=True) == one_pass


def test_the_processes_of_a_gpu() -> None:
    """An engine takes its share of the GPU; a colocated engine sleeps during the update."""
    server = {"num_replicas": 2, "replica_gpus": 1, "memory_utilization": 0.5}
    cluster = {"num_learners": 1, "learner_gpus": 1}
    config = run(cluster=cluster, policy_server=server)
    engine = 2 * (2 * TINY.parameters + GIB)
    learner = sum(sizes(config, TINY, estimate.LEARNER).values())
    overhead = estimate.GPU_OVERHEAD
    assert estimate.gpu_sizes(config, TINY) == [2 * overhead, 2 * overhead, learner + overhead]
    assert engine < 2 * overhead
    shares = {"num_learners": 1, "learner_gpus": 0.5}
    config = run(cluster=shares, policy_server=server | {"num_replicas": 1, "replica_gpus": 0.5})
    assert estimate.gpu_sizes(config, TINY) == [2 * (learner + 2 * overhead)]
    config = run(cluster=shares, policy_server=server | {"replica_gpus": 0.5})
    # Engines start first, so they share a GPU and reserve all of it.
    assert estimate.gpu_sizes(config, TINY) == [math.inf, learner + overhead]
    config = run(cluster=cluster, policy_server=server | {"num_replicas": 1, "colocate": True})
    parts = sizes(config, TINY, estimate.LEARNER)
    kept = parts["weights, float32"] + parts[estimate.MOMENTS] + parts["reference model, bfloat16"]
    expected = 2 * (kept + 2 * overhead)
    assert estimate.gpu_sizes(config, TINY) == [expected]
    asleep = sizes(config, TINY, estimate.REPLICA)["weights during an update, bfloat16"]
    assert asleep == 2 * TINY.parameters
    alone = run(policy_server=server | {"num_replicas": 1})
    assert estimate.smallest_gpu(config, TINY) == estimate.smallest_gpu(alone, TINY)
    assert expected > learner + 2 * overhead
    split = {"replica_gpus": 2, "tensor_parallel_size": 2, "memory_utilization": 1}
    assert estimate.gpu_sizes(run(policy_server=split), TINY) == 2 * [math.inf]
    assert estimate.gpu_sizes(run(), TINY) == []


def test_checkpoints() -> None:
    """Three copies of parameters, moments and policy are counted; with LoRA, of the adapters'."""
    assert estimate.checkpoint_bytes(run(), TINY) == 3 * 16 * TINY.parameters
    adapters = TINY.adapter_parameters(4)
    expected = 3 * (12 * adapters + 4 * TINY.parameters)
    assert estimate.checkpoint_bytes(run(model={"lora_rank": 4}), TINY) == expected


TOKENS, RESPONSE, ROWS, VOCABULARY = 256, 32, 2, 4000
PASSES: dict[str, dict[str, Any]] = {
    "float32": {"compute_dtype": "float32"},
    "float32, entropy": {"compute_dtype": "float32", "entropy_coeff": 0.1},
    "float32, checkpointing": {"compute_dtype": "float32", "gradient_checkpointing": True},
    "bfloat16": {"compute_dtype": "bfloat16"},
    "bfloat16, checkpointing": {"compute_dtype": "bfloat16", "gradient_checkpointing": True},
    "bfloat16, LoRA": {"compute_dtype": "bfloat16", "lora_rank": 4},
}


@pytest.mark.parametrize("name", PASSES)
def test_the_peak_of_a_real_update(name: str, tmp_path: Path) -> None:
    """The peak of an update is close to the estimated sum, and at most 2 % above it."""
    chosen = {"minibatch_size": ROWS, "micro_batch_tokens": TOKENS} | PASSES[name]
    config = tiny_qwen(vocab_size=VOCABULARY, num_hidden_layers=6, max_position_embeddings=TOKENS)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path)
    learner = build_learner(str(tmp_path), mismatch_alarm=None, max_ratio=None, **chosen)
    batch = steps_of_full_length()
    learner._weights_seq_no = 1
    lengths = {"prompt_length": torch.ones(ROWS).long(), "response_length": torch.ones(ROWS).long()}
    learner._update({DEFAULT_MODULE_ID: batch | lengths})  # allocates the moments
    with PeakMemory() as memory:
        learner._update({DEFAULT_MODULE_ID: batch})
    rank = chosen.pop("lora_rank", 0)
    agent = {"max_prompt_tokens": TOKENS - RESPONSE, "max_response_tokens": RESPONSE}
    settings = run(agent=agent, learner=chosen, model={"lora_rank": rank})
    size = ModelSize(config)
    expected = sum(estimate._one_pass(settings, size).values())
    expected += estimate._stored(settings, size)[estimate.GRADIENTS]
    assert 0.8 * expected < memory.peak < 1.02 * expected


def steps_of_full_length() -> dict[str, Tensor]:
    """Return random rows of full length."""
    generator = torch.Generator().manual_seed(0)
    prompt = TOKENS - RESPONSE
    ids = torch.randint(1, VOCABULARY, (ROWS, TOKENS), generator=generator).int()
    return {
        "prompt_ids": ids[:, :prompt],
        "response_ids": ids[:, prompt:],
        "prompt_length": torch.full((ROWS,), prompt),
        "response_length": torch.full((ROWS,), RESPONSE),
        "advantage": torch.randn(ROWS, generator=generator),
        "behavior_logp": torch.full((ROWS, RESPONSE), -8.0),
    }
