"""Load and save HuggingFace causal language models and their tokenizers."""

import json
from collections.abc import Mapping
from pathlib import Path

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

from env_wrappers.errors import one_line
from hgpo_rllib.errors import ConfigError


def load_tokenizer(model_path: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer exactly as the checkpoint's ``tokenizer.json`` defines it.

    `AutoTokenizer` rebuilds a Qwen2 tokenizer from the vocabulary and the merges only, which
    silently drops the pocket model's pre-tokenizer.

    Raises:
        ConfigError: the model holds no tokenizer.json that can be read.
    """
    try:
        return PreTrainedTokenizerFast.from_pretrained(model_path)
    except Exception as error:  # tokenizers raises errors of many types for a bad file
        raise ConfigError(
            f"{model_path} holds no tokenizer.json that can be read ({one_line(error)})"
        ) from error


def load_chat_tokenizer(model_path: str) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model that answers prompts.

    Raises:
        ConfigError: it cannot be read, or has no chat template.
    """
    tokenizer = load_tokenizer(model_path)
    if not tokenizer.chat_template:
        raise ConfigError(f"{model_path} has no chat template to build prompts with")
    return tokenizer


def write_tokenizer(model_path: str, folder: Path) -> None:
    """Write the model's tokenizer into a folder from which vLLM loads it as `load_tokenizer` does.

    From the directory of a Qwen2 model, vLLM rebuilds the tokenizer without the pocket model's
    pre-tokenizer and with one more token. Text would have other tokens, and grammars would permit
    an id that is no token.

    Raises:
        ConfigError: the model holds no tokenizer.json that can be read.
    """
    load_tokenizer(model_path).save_pretrained(folder)
    # vLLM reads the model type from config.json beside the tokenizer. For this type it loads
    # tokenizer.json unchanged.
    (folder / "config.json").write_text(json.dumps({"model_type": "granite"}))


def load_model(model_path: str) -> PreTrainedModel:
    """Load a causal language model in float32 and evaluation mode (no dropout)."""
    return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()


def checkpoint_form(state: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """Return a model's state as stored in a checkpoint: without a head tied to the embedding."""
    dropped = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return {name: tensor for name, tensor in state.items() if name not in dropped}


def save_model(model_path: str, state: Mapping[str, Tensor], folder: str) -> None:
    """Write a model in HuggingFace format, with its tokenizer.

    Args:
        model_path: starting model, for architecture, generation config and tokenizer.
        state: current weights, in checkpoint form.
        folder: output directory.
    """
    config = AutoConfig.from_pretrained(model_path, dtype=torch.float32)
    with torch.device("meta"):  # no weights, only the architecture
        model = AutoModelForCausalLM.from_config(config)
    if model.can_generate():
        model.generation_config = _generation_config(model_path) or model.generation_config
    model.save_pretrained(folder, state_dict=dict(state))
    load_tokenizer(model_path).save_pretrained(folder)


def _generation_config(model_path: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model_path)
    except OSError:  # the checkpoint has no generation config
        return None


def eos_token_ids(model_path: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the tokens that end a response: from the generation config, else the tokenizer.

    Raises:
        ConfigError: neither has one.
    """
    generation = _generation_config(model_path)
    eos = None if generation is None else generation.eos_token_id
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        raise ConfigError(f"{model_path} has no end token: set eos_token_id in its config files")
    return eos if isinstance(eos, list) else [eos]
