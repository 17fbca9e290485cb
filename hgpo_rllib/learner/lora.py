"""LoRA (arXiv 2106.09685) through peft: low-rank adapters are trained, the model stays as it is.

The frozen policy of the KL term then is the same model with its adapters switched off.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hgpo_rllib.policy_server.types import AdapterShape

NAME = "default"  # peft's, of the only adapter


def add_lora(llm: PreTrainedModel, rank: int, alpha: int, seed: int) -> None:
    """Put adapters on all linear layers but the head, and freeze the rest.

    They change nothing yet (B = 0). `seed` is of A, which all learners draw alike.
    """
    from peft import LoraConfig  # slow to import, and for LoRA alone

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # The model is in float32, and so are adapters; no dropout: ratios are of one policy.
        llm.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear"), NAME)


@contextmanager
def without_lora(llm: PreTrainedModel) -> Iterator[None]:
    """The model that the adapters were put on."""
    llm.disable_adapters()
    try:
        yield
    finally:
        llm.enable_adapters()


def adapter_shape(llm: PreTrainedModel) -> AdapterShape:
    """What an engine has to know of the adapters besides their tensors."""
    config = llm.peft_config[NAME]
    layers = {name.rpartition(".")[-1] for name in config.target_modules}
    return AdapterShape(config.r, config.lora_alpha, tuple(sorted(layers)))


def adapter_form(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's adapters by their names in peft's checkpoints."""
    return {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": tensor
        for name, tensor in state.items()
        if ".lora_" in name
    }


def merged_state(llm: PreTrainedModel) -> dict[str, Tensor]:
    """The model's weights with the adapters added in, by the names of a model without them."""
    from peft.tuners.lora import Linear

    state = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in llm.state_dict().items()
        if ".lora_" not in name
    }
    with torch.no_grad():
        for name, module in llm.named_modules():
            if isinstance(module, Linear):
                key = f"{name}.weight"
                state[key] = state[key] + module.get_delta_weight(NAME)
    return state
