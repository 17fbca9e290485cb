"""Publish the learner's weights, each time under a new version."""

import uuid
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hgpo_rllib.policy_server.engine import WeightTransport
from hgpo_rllib.policy_server.types import PublishedWeights, WeightTag

# Integer types of the same width, for dtypes that NumPy lacks.
BITS = {torch.bfloat16: torch.int16}


class WeightPublisher:
    """Number weight versions and pass them to the transport.

    A version is freed with its last tag. In a run the learner holds the tag of the latest version
    and the rollouts that of the version they request, so at most two versions exist.
    """

    def __init__(self, dtype: torch.dtype, transport: WeightTransport):
        """Create a publisher that converts weights to `dtype`."""
        self._transport = transport
        self._name = uuid.uuid4().hex[:12]
        self._dtype = dtype
        self._updates = 0

    def publish(
        self, state: Mapping[str, Tensor], adapter: Mapping[str, Any] | None = None
    ) -> WeightTag:
        """Publish weights in checkpoint form."""
        self._updates += 1
        weights = servable_weights(state, self._dtype, adapter)
        return WeightTag(self._name, self._updates, self._transport.publish(weights))


def servable_weights(
    state: Mapping[str, Tensor], dtype: torch.dtype, adapter: Mapping[str, Any] | None = None
) -> PublishedWeights:
    """Convert weights to their published form.

    Tensors that have the dtype already and are in host memory are not copied.
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
