"""New LoRA adapters, as an engine takes them: a folder in peft's format."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from hgpo_rllib.policy_server.types import PublishedWeights

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has room for


def room_for(rank: int) -> int:
    """The smallest of vLLM's ranks that holds this one."""
    return next(room for room in RANKS if room >= rank)


@contextmanager
def adapter_folder(weights: PublishedWeights) -> Iterator[Path]:
    """Published adapters as files, for as long as an engine reads them."""
    assert weights.adapter is not None, "these are weights of a whole model"
    dtype = getattr(torch, weights.dtype)
    tensors = {name: torch.tensor(array).view(dtype) for name, array in weights.tensors.items()}
    with tempfile.TemporaryDirectory(prefix="hgpo-adapter-") as name:
        folder = Path(name)
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "r": weights.adapter.rank,
            "lora_alpha": weights.adapter.alpha,
            "target_modules": list(weights.adapter.targets),
            "bias": "none",
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        yield folder
