"""The sum of the learners' gradients, computed while the backward pass still runs.

This is the bucketed reduction of torch's DistributedDataParallel, without its wrapper. If a learner
runs out of memory in the middle of a backward pass, its DDP cannot complete the reductions that the
other learners have begun, and these would wait forever. `GradientSum.complete` does complete them.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from hgpo_rllib.learner.data_parallel import world_size

BUCKET_BYTES = 25 * 2**20  # the default of DistributedDataParallel


class GradientSum:
    """Sum the gradients of a mini-batch over its passes and over all learners.

    A bucket is reduced as soon as the last pass has computed its gradients. Buckets are reduced in
    the same order by all learners, the order in which a backward pass usually completes them.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], sharded: bool):
        """If `sharded`, FSDP sums over learners, in every backward pass."""
        self._parameters = parameters
        self._buckets: list[list[nn.Parameter]] = []
        self._missing: list[int] = []  # how many gradients each bucket waits for
        self._works: list[dist.Work] = []  # of the buckets that are being reduced
        if world_size() > 1 and not sharded:
            self._buckets = buckets(parameters)
            self._bucket_of = {p: n for n, bucket in enumerate(self._buckets) for p in bucket}
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._computed)

    def begin(self, passes: int) -> None:
        """Clear the gradients. This learner then makes this number of backward passes."""
        for parameter in self._parameters:
            parameter.grad = None
        self._missing = [passes * len(bucket) for bucket in self._buckets]

    def _computed(self, parameter: nn.Parameter) -> None:
        """Count a gradient of one pass. Called by torch."""
        self._missing[self._bucket_of[parameter]] -= 1
        while len(self._works) < len(self._buckets) and not self._missing[len(self._works)]:
            self._reduce_next()

    def complete(self) -> None:
        """Reduce the other buckets and wait for all. Collective, also after a failed pass.

        Gradients that no pass has computed are 0.
        """
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        while len(self._works) < len(self._buckets):
            self._reduce_next()
        for work in self._works:
            work.wait()
        self._works = []

    def _reduce_next(self) -> None:
        bucket = self._buckets[len(self._works)]
        parts = [parameter.grad.flatten() for parameter in bucket]
        flat = torch.cat(parts) if len(parts) > 1 else parts[0]  # no copy of a large gradient
        for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.grad = part.view_as(parameter)  # frees the original
        self._works.append(dist.all_reduce(flat, async_op=True))


def buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Cut parameters, last first, into lists of at most `BUCKET_BYTES`, or one that is larger."""
    cut: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed(parameters):
        if not cut or size + parameter.nbytes > BUCKET_BYTES:
            cut.append([])
            size = 0
        cut[-1].append(parameter)
        size += parameter.nbytes
    return cut
