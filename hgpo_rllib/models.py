"""Loading a HuggingFace causal language model and its tokenizer: one path for every model."""

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
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


def eos_token_ids(model_path: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokens that end a response: those of the generation config, else the tokenizer's."""
    try:
        eos = GenerationConfig.from_pretrained(model_path).eos_token_id
    except OSError:  # a checkpoint without a generation config
        eos = None
    if eos is None:
        eos = tokenizer.eos_token_id
    return eos if isinstance(eos, list) else [eos]
