"""The size of a small model, and the settings of a run of a large one."""

from transformers import Qwen2Config

from hgpo_rllib.config import RunConfig, parse_config
from hgpo_rllib.run.model_size import ModelSize

QWEN = "Qwen/Qwen2.5-1.5B-Instruct"


def tiny_qwen(**changes: int) -> Qwen2Config:
    """Return the config of a small model."""
    sizes = {
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 400,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }
    return Qwen2Config(**(sizes | changes))


TINY = ModelSize(tiny_qwen())


def run(**sections: object) -> RunConfig:
    """Return the settings of a run of Qwen2.5-1.5B."""
    return parse_config({"model": {"model_path": QWEN}} | sections)
