"""Loading a HuggingFace causal language model and its tokenizer: one path for every model."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)


def load_tokenizer(model_path: str) -> PreTrainedTokenizerFast:
    """The tokenizer exactly as the checkpoint's ``tokenizer.json`` defines it.

    `AutoTokenizer` rebuilds a Qwen2 tokenizer from the vocabulary and the merges alone, which
    silently drops the pocket model's own pre-tokenizer; the file is what every model ships.
    """
    return PreTrainedTokenizerFast.from_pretrained(model_path)


def load_model(model_path: str) -> PreTrainedModel:
    """A causal language model in float32, in evaluation mode (no dropout)."""
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()


def checkpoint_form(state: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """A model's state as a checkpoint has it: a head tied to the embedding is left out."""
    dropped = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return {name: tensor for name, tensor in state.items() if name not in dropped}


def save_model(model_path: str, state: Mapping[str, Tensor], folder: str) -> None:
    """Write a model in HuggingFace format, with its tokenizer.

    Args:
        model_path: the model that was trained: architecture, generation config, tokenizer.
        state: its weights now, in checkpoint form.
        folder: where to.
    """
    config = AutoConfig.from_pretrained(model_path, dtype=torch.float32)
    with torch.device("meta"):  # the architecture alone
        model = AutoModelForCausalLM.from_config(config)
    if model.can_generate():
        model.generation_config = _generation_config(model_path) or model.generation_config
    model.save_pretrained(folder, state_dict=dict(state))
    load_tokenizer(model_path).save_pretrained(folder)


def _generation_config(model_path: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model_path)
    except OSError:  # a checkpoint without one
        return None


def eos_token_ids(model_path: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokens that end a response: those of the generation config, else the tokenizer's."""
    generation = _generation_config(model_path)
    eos = None if generation is None else generation.eos_token_id
    if eos is None:
        eos = tokenizer.eos_token_id
    return eos if isinstance(eos, list) else [eos]
