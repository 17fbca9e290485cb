"""The way of new weights: published as safetensors by the learner, loaded in place by vLLM."""

import shutil

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from hgpo_rllib.policy_server.transfer import (
    WEIGHTS_FILE,
    make_weights_folder,
    remove_stale_weights,
    this_node,
)
from hgpo_rllib.policy_server.types import WeightTag


class WeightPublisher:
    """Writes each version into its own directory and removes all but the latest two.

    The files live in shared memory of the learner's node. A reader that still holds the version
    before the last finds it; an older version is never asked for again.
    """

    def __init__(self, dtype: torch.dtype):
        remove_stale_weights()
        self.directory = make_weights_folder()
        self.dtype = dtype
        self.updates = 0

    def publish(self, model: PreTrainedModel) -> WeightTag:
        """Save the weights of `model` under a new version."""
        self.updates += 1
        final = self.directory / str(self.updates)
        partial = self.directory / f"{self.updates}.partial"
        partial.mkdir()
        save_file(servable_weights(model, self.dtype), partial / WEIGHTS_FILE)
        partial.rename(final)
        shutil.rmtree(self.directory / str(self.updates - 2), ignore_errors=True)
        return WeightTag(f"{self.directory.name}:{self.updates}", str(final), this_node())

    def close(self) -> None:
        """Remove all published weights."""
        shutil.rmtree(self.directory, ignore_errors=True)


def servable_weights(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The model's state in checkpoint form: a head tied to the embedding is left out."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return {
        name: tensor.detach().to(device="cpu", dtype=dtype).contiguous()
        for name, tensor in state.items()
    }


class WeightLoader:
    """vLLM worker extension: mixed into every worker of an engine, called by `collective_rpc`."""

    def load_policy_weights(self, path: str) -> None:
        """Load the checkpoint directory `path` in place, correct for tied embeddings on CPUs too.

        On a CPU vLLM keeps the output head as a prepacked copy, and a reload does not process a
        head that is tied to the embedding again: without repacking it the engine would answer with
        the old head, and its log-probabilities would silently be wrong.
        """
        from vllm.platforms import current_platform

        self.model_runner.reload_weights(weights_path=path)  # type: ignore[attr-defined]
        if current_platform.is_cpu():
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            head = getattr(model, "lm_head", None)
            if head is not None and hasattr(head, "quant_method"):
                head.quant_method.process_weights_after_loading(head)
