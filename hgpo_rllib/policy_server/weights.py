"""The learner's side of new weights: into Ray's object store, under a new version."""

import uuid

import ray
import torch
from transformers import PreTrainedModel

from hgpo_rllib.policy_server.types import PublishedWeights, WeightTag

# Integers with as many bits, for the types that NumPy lacks.
BITS = {torch.bfloat16: torch.int16}


class WeightPublisher:
    """Puts each version into Ray's object store.

    Nothing has to be removed: Ray frees a version with its last tag, and all of them when this
    process ends. In a run the learner has the tag of the latest version, and rollouts that of the
    version they ask for: two at most.
    """

    def __init__(self, dtype: torch.dtype):
        """Publish weights of the type `dtype`."""
        self.name = uuid.uuid4().hex[:12]
        self.dtype = dtype
        self.updates = 0

    def publish(self, model: PreTrainedModel) -> WeightTag:
        """Copy the weights of `model` into the object store."""
        self.updates += 1
        return WeightTag(self.name, self.updates, ray.put(servable_weights(model, self.dtype)))


def servable_weights(model: PreTrainedModel, dtype: torch.dtype) -> PublishedWeights:
    """The model's state in checkpoint form: a head tied to the embedding is left out.

    Where the model has the type already, and lies in the host's memory, nothing is copied.
    """
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    tensors = {
        name: tensor.detach()
        .to(device="cpu", dtype=dtype)
        .contiguous()
        .view(BITS.get(dtype, dtype))
        .numpy()
        for name, tensor in state.items()
    }
    return PublishedWeights(str(dtype).removeprefix("torch."), tensors)
