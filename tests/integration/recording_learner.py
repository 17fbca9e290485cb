"""A learner that records its start, updates and checkpoints, on a simulated GPU."""

from dataclasses import replace
from typing import Any

import torch
from ray.rllib.core.learner import learner_group
from ray.rllib.core.learner.torch import torch_learner

from hgpo_rllib.learner.learner import HGPOLearner
from tests.integration.recording_engine import record_event

# All processes that build or run learners import this module, which replaces NCCL with gloo and
# the GPU with the CPU.
backend_config = learner_group._get_backend_config
learner_group._get_backend_config = lambda kind: replace(backend_config(kind), backend="gloo")
torch_learner.get_device = lambda *_: torch.device("cpu")


class RecordingLearner(HGPOLearner):
    """A learner that records its start, updates and checkpoints."""

    def build(self) -> None:
        """See `Learner`."""
        record_event("learner")
        super().build()

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._update(*args, **kwargs)
        record_event("update")
        return result

    def _get_optimizer_state(self) -> Any:
        record_event("save")
        return super()._get_optimizer_state()
