"""Write published LoRA adapters as a folder in peft's format, which vLLM loads."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from hgpo_rllib.policy_server.types import PublishedWeights

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of max_lora_rank in vLLM


def room_for(rank: int) -> int:
    """Return the smallest of `RANKS` that is at least `rank`."""
    return next(room for room in RANKS if room >= rank)


@contextmanager
def adapter_folder(weights: PublishedWeights) -> Iterator[Path]:
    """Write published adapters to a temporary folder, which is deleted when the block ends."""
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
