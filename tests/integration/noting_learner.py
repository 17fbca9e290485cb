"""A learner that notes when it starts and when it updates, on a GPU that does not exist."""

from dataclasses import replace
from typing import Any

import torch
from ray.rllib.core.learner import learner_group
from ray.rllib.core.learner.torch import torch_learner

from hgpo_rllib.learner.learner import HGPOLearner
from tests.integration.noting_engine import note

# Every process that builds learners, or is one, imports this module: gloo replaces NCCL, and the
# CPU computes.
backend_config = learner_group._get_backend_config
learner_group._get_backend_config = lambda kind: replace(backend_config(kind), backend="gloo")
torch_learner.get_device = lambda *_: torch.device("cpu")


class NotingLearner(HGPOLearner):
    """`HGPOLearner` with notes."""

    def build(self) -> None:
        """See `Learner`."""
        note("learner")
        super().build()

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._update(*args, **kwargs)
        note("update")
        return result
