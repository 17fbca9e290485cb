"""The learner's AdamW: its learning rate, and its moments in host memory between steps."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from hgpo_rllib.settings.learner import LearnerSettings


def learning_rate(settings: LearnerSettings, steps: int, iterations: int) -> float:
    """Return the learning rate after this number of optimizer steps and of iterations."""
    warmup = min(1.0, (steps + 1) / max(1, settings.lr_warmup_steps))
    if settings.lr_decay_iterations is None:
        return settings.lr * warmup
    progress = min(1.0, iterations / settings.lr_decay_iterations)
    decay = (
        1 - progress if settings.lr_decay == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    return settings.lr * warmup * decay


def set_learning_rate(optimizer: Optimizer, settings: LearnerSettings, iterations: int) -> None:
    """Set the rates of policy and critic after this number of iterations; a resume keeps counts."""
    steps = int(next(iter(optimizer.state.values()))["step"]) if optimizer.state else 0
    rate = learning_rate(settings, steps, iterations)
    critic_factor = (settings.critic_lr or settings.lr) / settings.lr
    for group, factor in zip(optimizer.param_groups, (1.0, critic_factor), strict=False):
        group["lr"] = rate * factor


class OffloadedMoments:
    """Keeps the moments of an optimizer in host memory, except in a `loaded` block.

    The tensors of the optimizer stay the same objects and lose only their storage. Of sharded ones,
    each learner moves its shard.
    """

    def __init__(self, optimizer: Optimizer, enabled: bool):
        """If not `enabled`, the moments stay where they are."""
        self._optimizer, self._enabled = optimizer, enabled
        self._offloaded: list[tuple[Tensor, Tensor]] = []  # device tensor without storage, its copy

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Load the moments for a step, or to read or replace them."""
        for tensor, values in self._offloaded:
            tensor.untyped_storage().resize_(values.nbytes)
            tensor.copy_(values, non_blocking=True)
        self._offloaded = []
        yield
        if self._enabled:
            self._offload()

    @torch.no_grad()
    def _offload(self) -> None:
        for state in self._optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor) and value.dim():  # not the number of steps
                    tensor = value.to_local() if isinstance(value, DTensor) else value
                    values = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                    self._offloaded.append((tensor, values.copy_(tensor)))
                    tensor.untyped_storage().resize_(0)
