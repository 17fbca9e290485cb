"""LoRA: what is trained, published and saved."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from hgpo_rllib.learner.learner import HGPOLearner
from hgpo_rllib.learner.lora import adapter_config, adapter_form, without_lora
from hgpo_rllib.policy_server.publisher import servable_weights
from hgpo_rllib.policy_server.transfer import adapter_folder
from hgpo_rllib.policy_server.vllm_settings import engine_arguments
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.settings.model import ModelSettings
from hgpo_rllib.settings.policy_server import PolicyServerSettings
from tests.unit.learner.learner_reference import (
    QWEN,
    build_learner,
    llm_of,
    make_columns,
    reference_update,
    update,
)

LORA = {"lora_rank": 3, "lora_alpha": 6, "lr": 1e-2, "minibatch_size": 3, "mismatch_alarm": None}
TIED = Qwen2Config(**QWEN.to_dict() | {"tie_word_embeddings": True})
IDS = torch.arange(1, 13).view(1, 12)


@pytest.fixture
def learner(model_path: str) -> HGPOLearner:
    """Return a learner with LoRA and a KL term."""
    learner = build_learner(model_path, **LORA, kl_coeff=0.5)
    learner.policy.double()
    return learner


@pytest.fixture(scope="module")
def trained(model_path: str) -> HGPOLearner:
    """Return such a learner after two updates."""
    learner = build_learner(model_path, **LORA, kl_coeff=0.5)
    learner.policy.double()
    columns = make_columns(llm_of(learner))
    for _ in range(2):
        update(learner, columns)
    learner.policy.mark_weights_changed()
    return learner


def logits(llm: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return llm(IDS).logits


def test_it_begins_as_the_model(learner: HGPOLearner, model_path: str) -> None:
    plain = Qwen2ForCausalLM.from_pretrained(model_path).double()
    torch.testing.assert_close(logits(llm_of(learner)), logits(plain), rtol=0, atol=1e-12)


def test_only_adapters_are_trained(trained: HGPOLearner, model_path: str) -> None:
    """Only adapters change; without them, the model is the original one, which is the reference."""
    llm, plain = llm_of(trained), Qwen2ForCausalLM.from_pretrained(model_path).double()
    assert {"lora_" in name for name, p in llm.named_parameters() if p.requires_grad} == {True}
    assert trained._reference is None
    assert (logits(llm) - logits(plain)).abs().max() > 0.01
    with without_lora(llm):
        torch.testing.assert_close(logits(llm), logits(plain), rtol=0, atol=1e-12)
    assert (logits(llm) - logits(plain)).abs().max() > 0.01


def test_gradients_are_those_of_the_reference(learner: HGPOLearner, model_path: str) -> None:
    """Gradients equal those of the reference with the original model in the KL term."""
    columns = make_columns(llm_of(learner))
    update(learner, columns)
    plain = Qwen2ForCausalLM.from_pretrained(model_path).double().requires_grad_(False)
    settings = learner._settings.model_copy(update={"minibatch_size": 100, "grad_clip": 1e9})
    learner._settings = settings
    start = copy.deepcopy(llm_of(learner))
    learner._weights_seq_no = 0
    update(learner, columns)
    expected = reference_update(start, plain, columns, settings)
    ours = dict(llm_of(learner).named_parameters())
    compared = 0
    for name, parameter in expected.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=0, atol=1e-8)
            compared += bool(parameter.grad.abs().max() > 1e-4)
    assert compared > 10


def test_the_checkpoint_is_a_whole_model(trained: HGPOLearner, model_path: str) -> None:
    """The exported model has the adapters merged and gives the same logits."""
    plain = Qwen2ForCausalLM.from_pretrained(model_path).double()
    state = trained.policy.model_state()
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    torch.testing.assert_close(logits(plain), logits(llm_of(trained)), rtol=0, atol=1e-10)


def test_what_is_saved_to_resume(trained: HGPOLearner, model_path: str) -> None:
    """Only adapters are saved; a state that lacks some raises an error."""
    state = trained.policy.get_state()
    assert all("lora_" in name for name in state)
    other = build_learner(model_path, **LORA)
    other.policy.double()
    other.policy.set_state(state)
    torch.testing.assert_close(logits(llm_of(other)), logits(llm_of(trained)), rtol=0, atol=0)
    state.popitem()
    with pytest.raises(ValueError, match="the checkpoint lacks"):
        other.policy.set_state(state)


def test_a_tied_head_is_not_saved(tmp_path: Path) -> None:
    """Only adapters are saved, also if the frozen head is the embedding."""
    Qwen2ForCausalLM(TIED).save_pretrained(tmp_path)
    learner = build_learner(str(tmp_path), **LORA)
    state = learner.policy.get_state()
    assert state
    assert all("lora_" in name for name in state)
    learner.policy.set_state(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_engines_read(trained: HGPOLearner, dtype: torch.dtype) -> None:
    """The published adapter is a folder in peft's format, which is removed after use."""
    llm = llm_of(trained)
    form = adapter_form(llm.state_dict())
    with adapter_folder(servable_weights(form, dtype, adapter_config(llm))) as folder:
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    assert not folder.exists()
    assert (config["r"], config["lora_alpha"]) == (3, 6)
    assert set(config["target_modules"]) == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
    expected = llm.state_dict()["model.layers.1.mlp.up_proj.lora_B.default.weight"]
    torch.testing.assert_close(tensors[name], expected.to(dtype))
    assert len(tensors) == 2 * 7 * 2


def test_the_engine_has_room(model_path: str) -> None:
    """`max_lora_rank` is the next rank that vLLM supports, and is unset without LoRA."""
    for rank, room in ((0, None), (1, 1), (2, 8), (8, 8), (9, 16), (512, 512)):
        model = ModelSettings(model_path=model_path, lora_rank=rank)
        arguments = engine_arguments(model, AgentSettings(), PolicyServerSettings(), 0)
        assert arguments.get("max_lora_rank") == room
