"""Running means and maxima of an update, kept on the device until they are read."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from hgpo_rllib.metrics import METRICS


class Statistics:
    """Metrics by name, each reduced as declared in `hgpo_rllib.metrics`."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Add a micro-batch's values of a metric.

        Args:
            name: name of a declared metric; KeyError otherwise.
            values: one per token or step; for a mini-batch mean, this micro-batch's summand.
        """
        values, reduction = values.detach().double(), METRICS[name].reduction
        if reduction == "mini-batch mean":
            self._combine(name, values, 1)
            self._counts[name] = 1
        elif len(values):
            total = values.max() if reduction == "token maximum" else values.sum()
            self._combine(name, total, len(values))

    def merge(self, other: Self) -> None:
        """Add the statistics of another mini-batch."""
        for name, total in other._totals.items():
            self._combine(name, total, other._counts[name])

    def cpu(self) -> Self:
        """Return a copy in host memory to send to other learners, in one transfer."""
        moved = type(self)()
        moved._counts = self._counts
        if self._totals:
            totals = torch.stack(list(self._totals.values())).cpu()
            moved._totals = dict(zip(self._totals, totals, strict=True))
        return moved

    @classmethod
    def from_parts(cls, parts: Sequence[Self]) -> Self:
        """Combine the statistics of a mini-batch that was divided among several learners."""
        whole = cls()
        for part in parts:
            whole.merge(part)
        for name in whole._counts:
            if METRICS[name].reduction == "mini-batch mean":
                whole._counts[name] = 1
        return whole

    def values(self) -> dict[str, float]:
        """Return means and maxima, in one transfer from the device."""
        totals = self.cpu()._totals
        return {name: (total / self._counts[name]).item() for name, total in totals.items()}

    def _combine(self, name: str, total: Tensor, count: int) -> None:
        """Add to the sum, or keep the larger value of a maximum; NaN propagates."""
        if METRICS[name].reduction == "token maximum":
            self._totals[name] = torch.maximum(self._totals.get(name, total), total)
            self._counts[name] = 1
        else:
            self._totals[name] = self._totals[name] + total if name in self._totals else total
            self._counts[name] = self._counts.get(name, 0) + count
