"""What a run needs, estimated: against numbers worked out by hand, and against real models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.config import ConfigError, RunConfig, parse_config
from hgpo_rllib.learner.lora import add_lora
from hgpo_rllib.run import estimate
from hgpo_rllib.run.estimate import KNOWN_MODELS, ModelSize, Resources

GIB = 2**30
QWEN = "Qwen/Qwen2.5-1.5B-Instruct"


def tiny_qwen(**changes: int) -> Qwen2Config:
    """Return the config of a small model."""
    sizes = {
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 400,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }
    return Qwen2Config(**(sizes | changes))


TINY = ModelSize(tiny_qwen())


def run(**sections: object) -> RunConfig:
    """Return the settings of a run of Qwen2.5-1.5B."""
    return parse_config({"model": {"model_path": QWEN}} | sections)


def sizes(config: RunConfig, shape: ModelSize, process: str) -> dict[str, int]:
    """Return the parts of one process's memory."""
    return {i.what: i.size for i in estimate.memory(config, shape) if i.process == process}


class TestShape:
    @pytest.mark.parametrize(
        ("name", "parameters"),
        [
            ("Qwen/Qwen2.5-0.5B", 494_032_768),
            ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
            ("Qwen/Qwen2.5-3B", 3_085_938_688),
            ("Qwen/Qwen2.5-7B", 7_615_616_512),
            ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
            ("HuggingFaceTB/SmolLM2-360M", 361_821_120),
            ("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384),
        ],
    )
    def test_known_models_have_their_published_size(self, name: str, parameters: int) -> None:
        """A wrong number in the table would show in the total; they are as large with a name."""
        for given in (name, f"{name}-Instruct"):
            size = estimate.find_size(run(model={"model_path": given}))
            assert size is not None
            assert size.parameters == parameters

    def test_every_known_model_is_checked(self) -> None:
        """The test above names them all."""
        assert len(KNOWN_MODELS) == 7

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_real_qwen(self, tied: bool, tmp_path: Path) -> None:
        """The count from config.json is that of the model."""
        model = Qwen2ForCausalLM(tiny_qwen(tie_word_embeddings=tied))
        model.config.save_pretrained(tmp_path)
        shape = estimate.find_size(run(model={"model_path": str(tmp_path)}))
        assert shape is not None
        assert shape.parameters == sum(p.numel() for p in model.parameters())
        head = 320 * 96 * (not tied)
        assert shape.parameters == shape.trunk_parameters + head

    def test_a_real_llama(self, tmp_path: Path) -> None:
        """No biases, and heads of another size than hidden / heads."""
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        )
        config.save_pretrained(tmp_path)
        shape = estimate.find_size(run(model={"model_path": str(tmp_path)}))
        assert shape is not None
        assert shape.parameters == sum(p.numel() for p in LlamaForCausalLM(config).parameters())

    def test_the_pocket_model(self) -> None:
        """Its shape follows from `warm_start`, as `make_model` builds it."""
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        from hgpo_rllib.warmstart.cloning import make_model

        words = {f"w{i}": i for i in range(1000)}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0"
        )
        model = make_model(tokenizer, hidden_size=96, layers=3, max_length=64)
        shape = estimate.find_size(RunConfig())
        assert shape is not None
        assert shape.parameters == sum(p.numel() for p in model.parameters())

    def test_unknown_models_are_unknown(self, tmp_path: Path) -> None:
        """A name that is not in the table, a folder without config, another architecture."""
        for name in ("nobody/knows", str(tmp_path)):
            assert estimate.find_size(run(model={"model_path": name})) is None
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
        assert estimate.find_size(run(model={"model_path": str(tmp_path)})) is None

    @pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "none"}'])
    def test_a_broken_config_is_named(self, tmp_path: Path, text: str) -> None:
        """One line with the file."""
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"^model\.model_path: .*config\.json is no model"):
            estimate.find_size(run(model={"model_path": str(tmp_path)}))


class TestFormulas:
    def test_kv_cache(self) -> None:
        """Keys and values of 3 layers, one head of 32, two bytes each, for 10 tokens."""
        assert TINY.kv_cache_bytes(10, "bfloat16") == 10 * 2 * 3 * 32 * 2
        assert TINY.kv_cache_bytes(10, "float32") == 10 * 2 * 3 * 32 * 4

    def test_logits(self) -> None:
        """Three arrays of 320 float32 values for each of 10 tokens."""
        assert TINY.logit_bytes(10) == 10 * 3 * 320 * 4
        assert TINY.logit_bytes(10, entropy_bonus=True) == 10 * 4 * 320 * 5

    def test_activations_by_hand(self) -> None:
        """3 layers, each 6 x 96 + 2 x 96 + 2 x 32 + 4 x 400 = 2432 values of four bytes."""
        assert TINY.activation_bytes(10) == 10 * 3 * 2432 * 4

    def test_activations_are_what_a_real_model_keeps(self) -> None:
        """Autograd saves what the formula counts, and less than a tenth besides."""
        model = Qwen2ForCausalLM(tiny_qwen())
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept = {}  # the tensors are held, so that no storage is used twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in parameters:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        ids = torch.randint(0, 320, (2, 256))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            held = model.base_model(input_ids=ids, use_cache=False)
        saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
        assert held is not None
        assert TINY.activation_bytes(2 * 256) == pytest.approx(saved, rel=0.1)


class TestMemory:
    def test_the_learner(self) -> None:
        """20 bytes a parameter with a reference, and a micro-batch of one full-length turn."""
        shape = estimate.find_size(run())
        assert shape is not None
        parts = sizes(run(learner={"micro_batch_tokens": 4608}), shape, estimate.MAIN)
        parameters = 1_543_714_304
        assert parts == {
            "weights, float32": 4 * parameters,
            "gradients, float32": 4 * parameters,
            "AdamW's two moments, float32": 8 * parameters,
            "reference model, float32": 4 * parameters,
            "activations of 4,608 tokens": 4608 * 28 * (8 * 1536 + 2 * 256 + 4 * 8960) * 4,
            "logits of 512 response tokens": 3 * 512 * 151936 * 4,
        }
        assert round(sum(parts.values()) / GIB, 1) == 53.0

    def test_without_kl_there_is_no_reference(self) -> None:
        """As the learner loads none."""
        parts = sizes(run(learner={"kl_coeff": 0}), TINY, estimate.MAIN)
        assert not any("reference" in what for what in parts)

    @pytest.mark.parametrize("kind", ["head", "separate"])
    def test_a_critic(self, kind: str) -> None:
        """A separate one is a second model without head, which reads prompts; else nothing."""
        ppo = {"algorithm": {"estimator": "ppo"}, "learner": {"critic": kind}}
        untied = ModelSize(tiny_qwen(tie_word_embeddings=False))
        extra = {
            what: size
            for what, size in sizes(run(**ppo), untied, estimate.MAIN).items()
            if "critic" in what
        }
        prompts = 16384 - 16384 * 512 // 4608
        expected = {
            "critic: weights, gradients, AdamW's moments, float32": 16 * TINY.parameters,
            f"critic: activations of {prompts:,} prompt tokens": TINY.activation_bytes(prompts),
        }
        assert extra == (expected if kind == "separate" else {})

    def test_a_turn_longer_than_the_budget_has_a_micro_batch_of_its_own(self) -> None:
        """The budget does not cut turns."""
        parts = sizes(run(learner={"micro_batch_tokens": 100}), TINY, estimate.MAIN)
        assert "activations of 4,608 tokens" in parts

    def test_a_replica_on_a_gpu(self) -> None:
        """Weights in the served type; a KV cache for all sequences at full length."""
        server = {"replica_gpus": 1, "max_num_seqs": 8, "memory_utilization": 0.5}
        config = run(policy_server=server)
        weights, cache = 2 * TINY.parameters, 8 * 4608 * 2 * 3 * 32 * 2
        assert sizes(config, TINY, estimate.REPLICA) == {
            "weights, bfloat16": weights,
            "KV cache of 8 sequences of 4,608 tokens": cache,
        }
        assert estimate.smallest_gpu(config, TINY) == 2 * (weights + cache)

    def test_a_replica_on_a_cpu(self) -> None:
        """Its KV cache is a setting."""
        config = run(policy_server={"cpu_kv_cache_gib": 3}, model={"dtype": "float32"})
        parts = sizes(config, TINY, estimate.REPLICA)
        assert parts["KV cache (cpu_kv_cache_gib)"] == 3 * GIB
        assert parts["weights, float32"] == 4 * TINY.parameters

    def test_published_weights(self) -> None:
        """Two versions in the store, and a copy for each replica that loads one."""
        config = run(policy_server={"num_replicas": 3})
        assert sizes(config, TINY, "published weights") == {
            "2 versions of the weights in Ray's object store, bfloat16": 2 * 2 * TINY.parameters,
        }
        assert sizes(config, TINY, "weights that are being loaded") == {
            "replicas: 3, one copy each, bfloat16": 3 * 2 * TINY.parameters
        }

    def test_where_it_lies(self) -> None:
        """On a GPU where one is asked for, else in the memory of the host."""
        gpus = run(cluster={"learner_gpus": 1}, policy_server={"replica_gpus": 0.5})
        places = {i.process: i.where for i in estimate.memory(gpus, TINY)}
        assert places[estimate.MAIN] == places[estimate.REPLICA] == "GPU"
        places = {i.process: i.where for i in estimate.memory(run(), TINY)}
        assert places[estimate.MAIN] == places[estimate.REPLICA] == "host"


def test_resources() -> None:
    """The main process reserves the learner's GPU, every replica what is set."""
    server = {"num_replicas": 3, "replica_cpus": 2, "replica_gpus": 0.5}
    config = run(policy_server=server, cluster={"learner_gpus": 1})
    assert estimate.resources(config) == [
        Resources(estimate.MAIN, 1, 0, 1),
        Resources(estimate.REPLICA, 3, 2, 0.5),
    ]


def test_several_learners() -> None:
    """Each is a process with a share of its own; sharded, with a part of the parameters."""
    cluster = {"num_learners": 2, "learner_gpus": 1}
    assert estimate.resources(run(cluster=cluster))[:2] == [
        Resources(estimate.ROLLOUTS, 1, 0, 0),
        Resources(estimate.LEARNER, 2, 0, 1),
    ]
    whole = sizes(run(cluster=cluster), TINY, estimate.LEARNER)
    sharded = run(cluster=cluster, learner={"shard_parameters": True})
    parts = sizes(sharded, TINY, estimate.LEARNER)
    for what in ("weights, float32", "AdamW's two moments, float32"):
        assert parts[what] == whole[what] / 2
    assert sizes(sharded, TINY, "first learner") == {"whole weights, float32": 4 * TINY.parameters}


def test_adapters() -> None:
    """Counted as peft makes them; nothing else has gradients, and there is no second model."""
    model = Qwen2ForCausalLM(tiny_qwen())
    add_lora(model, 5, 32, 0)
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert TINY.adapter_parameters(5) == adapters
    parts = sizes(run(model={"lora_rank": 5}), TINY, estimate.MAIN)
    assert parts["gradients, float32"] == 4 * adapters
    assert parts["weights, float32"] == 4 * TINY.parameters
    assert not any("reference" in what for what in parts)
    assert (
        sum(sizes(run(model={"lora_rank": 5}), TINY, "published weights").values()) == 4 * adapters
    )


def test_checkpointing_keeps_less() -> None:
    tokens, plain = 100, TINY.activation_bytes(100)
    assert TINY.activation_bytes(tokens, checkpointing=True) < plain
    expected = plain // 3 + tokens * 3 * 96 * 4
    assert TINY.activation_bytes(tokens, checkpointing=True) == expected
