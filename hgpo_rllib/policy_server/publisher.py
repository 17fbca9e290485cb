"""The learner's side of new weights: published under a new version."""

import uuid
from collections.abc import Mapping

import torch
from torch import Tensor

from hgpo_rllib.policy_server.engine import WeightTransport
from hgpo_rllib.policy_server.types import AdapterShape, PublishedWeights, WeightTag

# Integers with as many bits, for the types that NumPy lacks.
BITS = {torch.bfloat16: torch.int16}


class WeightPublisher:
    """Numbers versions, and gives each to the transport.

    Nothing has to be removed: a version goes with its last tag. In a run the learner has the tag of
    the latest version, and rollouts that of the version they ask for: two at most.
    """

    def __init__(self, dtype: torch.dtype, transport: WeightTransport):
        """Publish weights of the type `dtype`."""
        self._transport = transport
        self.name = uuid.uuid4().hex[:12]
        self.dtype = dtype
        self.updates = 0

    def publish(
        self, state: Mapping[str, Tensor], adapter: AdapterShape | None = None
    ) -> WeightTag:
        """Publish weights in checkpoint form."""
        self.updates += 1
        weights = servable_weights(state, self.dtype, adapter)
        return WeightTag(self.name, self.updates, self._transport.publish(weights))


def servable_weights(
    state: Mapping[str, Tensor], dtype: torch.dtype, adapter: AdapterShape | None = None
) -> PublishedWeights:
    """Weights as they are published.

    Where they have the type already, and lie in the host's memory, nothing is copied.
    """
    tensors = {
        name: tensor.detach()
        .to(device="cpu", dtype=dtype)
        .contiguous()
        .view(BITS.get(dtype, dtype))
        .numpy()
        for name, tensor in state.items()
    }
    return PublishedWeights(str(dtype).removeprefix("torch."), tensors, adapter)
