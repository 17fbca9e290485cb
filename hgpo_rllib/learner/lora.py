"""LoRA (arXiv 2106.09685) with peft: train low-rank adapters and freeze the model.

The reference policy of the KL term is the same model with its adapters disabled.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

NAME = "default"  # peft's name of the only adapter


def add_lora(llm: PreTrainedModel, rank: int, alpha: int, seed: int) -> None:
    """Add adapters to all linear layers but the head, and freeze the other parameters.

    Initially the output is unchanged (B = 0). `seed` initializes A, equally on all learners.
    """
    from peft import LoraConfig  # slow to import, needed only for LoRA

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Adapters are float32, like the model. No dropout: it would randomize the ratios.
        llm.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear"), NAME)


@contextmanager
def without_lora(llm: PreTrainedModel) -> Iterator[None]:
    """Disable the adapters in the block."""
    llm.disable_adapters()
    try:
        yield
    finally:
        llm.enable_adapters()


def adapter_config(llm: PreTrainedModel) -> dict[str, Any]:
    """Return what an engine needs besides the tensors, as in peft's adapter_config.json."""
    config = llm.peft_config[NAME]
    layers = {name.rpartition(".")[-1] for name in config.target_modules}
    scale = {"r": config.r, "lora_alpha": config.lora_alpha, "bias": "none"}
    return {"peft_type": "LORA", "target_modules": sorted(layers), **scale}


def adapter_form(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's adapters, named as in peft's checkpoints."""
    return {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": tensor
        for name, tensor in state.items()
        if ".lora_" in name
    }


def merged_state(
    llm: PreTrainedModel, adapters: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return the frozen weights of `llm` with adapters merged in, in host memory.

    They are named as in a model without adapters. `adapters` are named as in the model with
    adapters; other tensors are ignored.
    """
    state = {
        name.replace(".base_layer.", "."): tensor.cpu()
        for name, tensor in llm.state_dict().items()
        if ".lora_" not in name
    }
    for name, down in adapters.items():
        layer, found, _ = name.partition(f".lora_A.{NAME}.")
        if found:
            up = adapters[name.replace(".lora_A.", ".lora_B.")]
            key = f"{layer}.weight"
            state[key] = state[key] + up.cpu() @ down.cpu() * (config["lora_alpha"] / config["r"])
    return state
