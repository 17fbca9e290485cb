"""The size of a model, and of what a pass through it keeps in memory. Nothing is downloaded."""

import copy
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

from env_wrappers.errors import one_line
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.settings.learner import Dtype, tokens_at_once
from hgpo_rllib.warmstart.cloning import HEAD_SIZE

BYTES = {"float32": 4, "bfloat16": 2}
LOGIT_COPIES = 3  # log-probabilities, probabilities, and a product of the two
ENTROPY_COPIES = 3  # additional copies in the backward pass of the entropy bonus
GATHERED_LAYERS = 3  # of sharded parameters: in use, received in advance, and its receive buffer
REDUCED_LAYERS = 2  # gradients of a layer, and the buffer from which they are summed and sharded


class ModelSize:
    """Sizes of a decoder of the Llama family: RMS norms, gated MLP, grouped key-value heads.

    Attributes:
        parameters: number of parameters; a head tied to the embedding is counted once.
        trunk_parameters: number of parameters without the output head.
        matrices: number of parameters of the linear layers of the trunk.
        head: number of parameters of the output head, tied or not.
        layers: number of layers.
        tokens_at_once: largest number of tokens whose logits are in memory.
        attention: values of a layer's attention per token: query size, i.e. heads times their size.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Count the parameters of transformers' model of `config`, on the meta device.

        Raises:
            AttributeError: the model is not such a decoder.
        """
        self._config = config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self.parameters = model.num_parameters()
        self.trunk_parameters = model.base_model.num_parameters()
        linear = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
        self.matrices = sum(p.numel() for layer in linear for p in layer.parameters())
        self.head = config.vocab_size * config.hidden_size
        self.layers = config.num_hidden_layers
        self._adapter_rows = sum(layer.in_features + layer.out_features for layer in linear)
        self._in_layers = sum(p.numel() for p in model.base_model.layers.parameters())
        self.tokens_at_once = tokens_at_once(config.vocab_size)
        self._vocabulary, self._hidden = config.vocab_size, config.hidden_size
        self._intermediate = config.intermediate_size
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or self._hidden // heads
        self.attention = heads * head_size
        self.key_value_heads = config.num_key_value_heads
        self._key_value = self.key_value_heads * head_size

    def first_layers(self, layers: int | None) -> "ModelSize":
        """Return the size of the model with only its first `layers` layers; None: all."""
        if layers is None or layers >= self.layers:
            return self
        config = copy.deepcopy(self._config)
        config.num_hidden_layers = layers
        return ModelSize(config)

    def kv_cache_bytes(self, tokens: int, dtype: str) -> int:
        """Return the size of the KV cache: ``2 · layers · kv`` values per token."""
        return tokens * 2 * self.layers * self._key_value * BYTES[dtype]

    def activation_bytes(
        self, tokens: int, dtype: Dtype = "float32", checkpointing: bool = False
    ) -> int:
        """Return the size of the activations saved for the backward pass.

        In float32 a layer saves, per token, ``3 h`` values for each of its two norms (input,
        normalized, and scaled, which is the input of the next projections), ``2 q + 2 kv`` for
        attention (queries, keys, values, result; no score matrix) and ``4 m`` for the MLP (gate,
        its activation, up, product).

        In bfloat16, autocast leaves norms and the sum of the layers' outputs in float32: ``2 h``
        values for each norm. Inputs and outputs of matrix products are bfloat16: the rest above,
        and the input of the five projections that follow a norm, which each of them converts and
        saves for itself: ``5 h``.

        With gradient checkpointing each layer saves its input, ``h`` values in float32, and one
        layer at a time the rest.
        """
        h, rest = self._hidden, 2 * (self.attention + self._key_value) + 4 * self._intermediate
        layer = 4 * (6 * h + rest) if dtype == "float32" else 4 * 4 * h + 2 * (5 * h + rest)
        once = self.layers * 4 * h + layer
        return tokens * (once if checkpointing else self.layers * layer)

    def converted_bytes(self, dtype: Dtype, checkpointing: bool = False) -> int:
        """Return the size of the matrices that a pass converts from float32 to `dtype`.

        The backward pass reads them: those of all layers, or of one layer at a time with gradient
        checkpointing, and the output head.
        """
        if dtype == "float32":
            return 0
        kept = self.matrices // self.layers if checkpointing else self.matrices
        return BYTES[dtype] * (kept + self.head)

    def frozen_bytes(self, dtype: Dtype) -> int:
        """Return the size of a model whose matrices are stored in `dtype`, the rest in float32.

        See `hgpo_rllib.learner.module.TokenScorer.freeze`. A tied head is stored in float32.
        """
        untied_head = self.parameters - self.trunk_parameters
        matrices = self.matrices + untied_head
        return 4 * (self.parameters - matrices) + BYTES[dtype] * matrices

    def gathered_bytes(self, trained: bool = True) -> int:
        """Return the size of the whole parameters and gradients during a pass, if sharded.

        The embedding and the head are whole from the first layer of a pass to the end of its
        backward pass, and so are their gradients, if `trained`. Layers are gathered one by one.
        """
        layers = GATHERED_LAYERS + REDUCED_LAYERS * trained
        outside = self.parameters - self._in_layers
        return 4 * (outside * (1 + trained) + layers * self._in_layers // self.layers)

    def adapter_parameters(self, rank: int) -> int:
        """Return the LoRA parameters: ``rank`` rows and columns per linear layer of the trunk."""
        return rank * self._adapter_rows

    def logit_bytes(self, tokens: int, entropy_bonus: bool = False) -> int:
        """Return the peak size of the output head: float32 copies of V values per response token.

        Logits are converted to float32 before the softmax, whatever the type of the pass.
        """
        copies = LOGIT_COPIES + ENTROPY_COPIES * entropy_bonus
        return copies * tokens * self._vocabulary * BYTES["float32"]


# Sizes of models on the HuggingFace hub, from their config.json, also valid for "-Instruct":
# vocabulary, hidden and intermediate size, layers, heads, key-value heads, head is tied.
KNOWN_MODELS: dict[str, tuple[type[PretrainedConfig], tuple[int, ...]]] = {
    "Qwen/Qwen2.5-0.5B": (Qwen2Config, (151936, 896, 4864, 24, 14, 2, True)),
    "Qwen/Qwen2.5-1.5B": (Qwen2Config, (151936, 1536, 8960, 28, 12, 2, True)),
    "Qwen/Qwen2.5-3B": (Qwen2Config, (151936, 2048, 11008, 36, 16, 2, True)),
    "Qwen/Qwen2.5-7B": (Qwen2Config, (152064, 3584, 18944, 28, 28, 4, False)),
    "HuggingFaceTB/SmolLM2-135M": (LlamaConfig, (49152, 576, 1536, 30, 9, 3, True)),
    "HuggingFaceTB/SmolLM2-360M": (LlamaConfig, (49152, 960, 2560, 32, 15, 5, True)),
    "HuggingFaceTB/SmolLM2-1.7B": (LlamaConfig, (49152, 2048, 8192, 24, 32, 32, True)),
}
_SIZES: tuple[str, ...] = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
_SIZES += ("num_attention_heads", "num_key_value_heads", "tie_word_embeddings")


def find_size(config: RunConfig) -> ModelSize | None:
    """Return the size of the run's model, from a local config.json, the table or the pocket model.

    Returns None for names missing in the table and other architectures.

    Raises:
        ConfigError: the model's config.json is invalid.
    """
    name = config.model.model_path
    if name is None:
        warm = config.warm_start
        vocabulary, heads = -(-warm.vocabulary // 64) * 64, warm.hidden_size // HEAD_SIZE
        mlp = 3 * warm.hidden_size
        sizes = (vocabulary, warm.hidden_size, mlp, warm.layers, heads, 1, True)
        return ModelSize(Qwen2Config(**dict(zip(_SIZES, sizes, strict=True))))
    if known := KNOWN_MODELS.get(name.removesuffix("-Instruct")):
        return ModelSize(known[0](**dict(zip(_SIZES, known[1], strict=True))))
    file = Path(name) / "config.json"
    if not file.is_file():
        return None
    try:
        return ModelSize(AutoConfig.from_pretrained(name, trust_remote_code=False))
    except AttributeError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"model.model_path: {file} is not a model config ({one_line(error)})"
        ) from error
