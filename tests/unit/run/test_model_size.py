"""Sizes of models, against manual computations and against real models."""

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

PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


class TestShape:
    @pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
    def test_known_models_have_their_published_size(self, name: str, parameters: int) -> None:
        """The table gives each model its published size, with and without `-Instruct`."""
        for given in (name, f"{name}-Instruct"):
            size = find_size(run(model={"model_path": given}))
            assert size is not None
            assert size.parameters == parameters

    def test_every_known_model_is_checked(self) -> None:
        """The test above covers every model in the table."""
        assert PUBLISHED.keys() == KNOWN_MODELS.keys()

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_real_qwen(self, tied: bool, tmp_path: Path) -> None:
        """The size computed from config.json equals the model's parameter count."""
        model = Qwen2ForCausalLM(tiny_qwen(tie_word_embeddings=tied))
        model.config.save_pretrained(tmp_path)
        shape = find_size(run(model={"model_path": str(tmp_path)}))
        assert shape is not None
        assert shape.parameters == sum(p.numel() for p in model.parameters())
        head = 320 * 96 * (not tied)
        assert shape.parameters == shape.trunk_parameters + head

    def test_a_real_llama(self, tmp_path: Path) -> None:
        """The size is right for a model without biases and with its own `head_dim`."""
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
        """The size follows from `warm_start` and equals that of `make_model`."""
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
        """Unlisted names, folders without a config and other architectures have no known size."""
        for name in ("nobody/knows", str(tmp_path)):
            assert find_size(run(model={"model_path": name})) is None
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
        assert find_size(run(model={"model_path": str(tmp_path)})) is None

    @pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "none"}'])
    def test_a_broken_config_is_named(self, tmp_path: Path, text: str) -> None:
        """A malformed config.json raises an error that names the file."""
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"^model\.model_path: .*config\.json is not a model"):
            find_size(run(model={"model_path": str(tmp_path)}))


class TestFormulas:
    def test_kv_cache(self) -> None:
        """The cache holds keys and values of 3 layers with one head of 32 for 10 tokens."""
        assert TINY.kv_cache_bytes(10, "bfloat16") == 10 * 2 * 3 * 32 * 2
        assert TINY.kv_cache_bytes(10, "float32") == 10 * 2 * 3 * 32 * 4

    def test_logits(self) -> None:
        """Logits take three float32 arrays of 320 values per token; an entropy bonus needs more."""
        assert TINY.logit_bytes(10) == 10 * 3 * 320 * 4
        assert TINY.logit_bytes(10, entropy_bonus=True) == 10 * 4 * 320 * 6

    def test_activations_by_hand(self) -> None:
        """Activations match a manual count.

        Each of 3 layers has 6 x 96 + 2 x 96 + 2 x 32 + 4 x 400 = 2432 values of four bytes; in
        bfloat16 4 x 96 of four bytes and 5 x 96 + 2 x 96 + 2 x 32 + 4 x 400 = 2336 of two.
        """
        assert TINY.activation_bytes(10) == 10 * 3 * 2432 * 4
        low = 4 * 4 * 96 + 2 * 2336
        assert TINY.activation_bytes(10, "bfloat16") == 10 * 3 * low
        assert TINY.activation_bytes(10, "bfloat16", checkpointing=True) == 10 * (3 * 4 * 96 + low)

    def test_matrices_by_hand(self) -> None:
        """Matrices match a manual count.

        A layer has queries and output of 96 x 96, keys and values of 96 x 32 and three matrices of
        96 x 400; queries, keys and values have biases. The head is 320 x 96, and tied.
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
        """The formulas count what autograd saves to within 10 %.

        With checkpointing, the activations that the backward pass recomputes are not included.
        """
        model = Qwen2ForCausalLM(tiny_qwen()).train()
        if checkpointing:
            model.base_model.gradient_checkpointing_enable({"use_reentrant": False})
        parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept = {}  # keeps the tensors alive, so that no storage is reused

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
            saved -= 2 * tokens * 4 * 96  # the input of the last norm, and its normalized form
        assert expected == pytest.approx(saved, rel=0.1)
