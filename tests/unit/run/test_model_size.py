"""Sizes of models: against numbers worked out by hand, and against real models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2ForCausalLM

from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.learner.module import TokenScorer
from hgpo_rllib.run.model_size import KNOWN_MODELS, ModelSize, find_size
from hgpo_rllib.settings.learner import Dtype
from tests.unit.run.model_sizes import TINY, run, tiny_qwen


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
            size = find_size(run(model={"model_path": given}))
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
        shape = find_size(run(model={"model_path": str(tmp_path)}))
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
        shape = find_size(run(model={"model_path": str(tmp_path)}))
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
        shape = find_size(RunConfig())
        assert shape is not None
        assert shape.parameters == sum(p.numel() for p in model.parameters())

    def test_unknown_models_are_unknown(self, tmp_path: Path) -> None:
        """A name that is not in the table, a folder without config, another architecture."""
        for name in ("nobody/knows", str(tmp_path)):
            assert find_size(run(model={"model_path": name})) is None
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
        assert find_size(run(model={"model_path": str(tmp_path)})) is None

    @pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "none"}'])
    def test_a_broken_config_is_named(self, tmp_path: Path, text: str) -> None:
        """One line with the file."""
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"^model\.model_path: .*config\.json is not a model"):
            find_size(run(model={"model_path": str(tmp_path)}))


class TestFormulas:
    def test_kv_cache(self) -> None:
        """Keys and values of 3 layers, one head of 32, two bytes each, for 10 tokens."""
        assert TINY.kv_cache_bytes(10, "bfloat16") == 10 * 2 * 3 * 32 * 2
        assert TINY.kv_cache_bytes(10, "float32") == 10 * 2 * 3 * 32 * 4

    def test_logits(self) -> None:
        """Three arrays of 320 float32 values for each of 10 tokens."""
        assert TINY.logit_bytes(10) == 10 * 3 * 320 * 4
        assert TINY.logit_bytes(10, entropy_bonus=True) == 10 * 4 * 320 * 6

    def test_activations_by_hand(self) -> None:
        """3 layers, each 6 x 96 + 2 x 96 + 2 x 32 + 4 x 400 = 2432 values of four bytes.

        In bfloat16: 4 x 96 values of four bytes, 5 x 96 + 2 x 96 + 2 x 32 + 4 x 400 = 2336 of two.
        """
        assert TINY.activation_bytes(10) == 10 * 3 * 2432 * 4
        low = 4 * 4 * 96 + 2 * 2336
        assert TINY.activation_bytes(10, "bfloat16") == 10 * 3 * low
        assert TINY.activation_bytes(10, "bfloat16", checkpointing=True) == 10 * (3 * 4 * 96 + low)

    def test_matrices_by_hand(self) -> None:
        """A layer: queries and output 96 x 96, keys and values 96 x 32, three of 96 x 400.

        Queries, keys and values have biases. The head is 320 x 96, and tied.
        """
        layer = 2 * 96 * 96 + 2 * 96 * 32 + 3 * 96 * 400 + 96 + 2 * 32
        norms, embedding = 7 * 96, 320 * 96
        assert TINY.matrices == 3 * layer
        assert TINY.parameters == 3 * layer + norms + embedding
        assert TINY.converted_bytes("float32") == 0
        assert TINY.converted_bytes("bfloat16") == 2 * (3 * layer + embedding)
        assert TINY.converted_bytes("bfloat16", checkpointing=True) == 2 * (layer + embedding)
        assert TINY.frozen_bytes("float32") == 4 * TINY.parameters
        assert TINY.frozen_bytes("bfloat16") == 2 * 3 * layer + 4 * (norms + embedding)
        untied = ModelSize(tiny_qwen(tie_word_embeddings=False))
        assert untied.frozen_bytes("bfloat16") == TINY.frozen_bytes("bfloat16") + 2 * embedding
        whole = layer + 2 * 96
        assert TINY.gathered_bytes() == 4 * (2 * (embedding + 96) + 5 * whole)
        assert TINY.gathered_bytes(trained=False) == 4 * (embedding + 96 + 3 * whole)

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_frozen_model_is_as_large(self, tied: bool) -> None:
        config = tiny_qwen(tie_word_embeddings=tied)
        options = {"temperature": 1.0, "entropy_gradient": False, "gradient_checkpointing": False}
        options |= {"compile": False, "compute_dtype": "bfloat16"}
        scorer = TokenScorer(Qwen2ForCausalLM(config), None, options)
        scorer.freeze(torch.device("cpu"))
        size = sum(p.numel() * p.element_size() for p in scorer.parameters())
        assert ModelSize(config).frozen_bytes("bfloat16") == size

    @pytest.mark.parametrize("checkpointing", [False, True])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_activations_are_what_a_real_model_keeps(
        self, dtype: Dtype, checkpointing: bool
    ) -> None:
        """Autograd saves what the formulas count, and less than a tenth besides.

        With checkpointing, what is computed again in the backward pass does not show here.
        """
        model = Qwen2ForCausalLM(tiny_qwen()).train()
        if checkpointing:
            model.base_model.gradient_checkpointing_enable({"use_reentrant": False})
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept = {}  # the tensors are held, so that no storage is used twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in parameters:
                kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        tokens = 2 * 256
        ids = torch.randint(0, 320, (2, 256))
        passes = torch.autocast("cpu", getattr(torch, dtype), enabled=dtype == "bfloat16")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), passes:
            held = model.base_model(input_ids=ids, use_cache=False)
        saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
        assert held is not None
        expected = TINY.activation_bytes(tokens, dtype)
        if dtype == "bfloat16":
            expected += TINY.converted_bytes(dtype) - 2 * TINY.head
        if checkpointing:
            one_layer = ModelSize(tiny_qwen(num_hidden_layers=1)).activation_bytes(tokens, dtype)
            expected = TINY.activation_bytes(tokens, dtype, checkpointing=True) - one_layer
            saved -= 2 * tokens * 4 * 96  # input of the last norm, and the same normalized
        assert expected == pytest.approx(saved, rel=0.1)
