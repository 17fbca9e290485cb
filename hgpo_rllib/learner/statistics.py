"""Running means and maxima of an update, kept on the device until they are read."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from hgpo_rllib.metrics import METRICS


class Statistics:
    """Metrics by name, each reduced as declared in `hgpo_rllib.metrics`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor) -> None:
        """Add a micro-batch's values of a metric.

        Args:
            name: name of a declared metric; KeyError otherwise.
            values: one per token or step; for a mini-batch mean, this micro-batch's summand.
        """
        values = values.detach()
        match METRICS[name].reduction:
            case "token maximum":
                if len(values):
                    self._maximum(name, values.double().max())
            case "mini-batch mean":
                self._add(name, values.double(), 0)
                self._counts[name] = 1
            case _:
                self._add(name, values.sum(dtype=torch.float64), len(values))

    def merge(self, other: Self) -> None:
        """Add the statistics of another mini-batch."""
        for name, total in other._sums.items():
            self._add(name, total, other._counts[name])
        for name, value in other._maxima.items():
            self._maximum(name, value)

    def on_host(self) -> Self:
        """Return a copy in host memory to send to other learners, in one transfer."""
        moved = type(self)()
        moved._counts = self._counts
        numbers = [*self._sums.values(), *self._maxima.values()]
        if numbers:
            values, sums = torch.stack(numbers).cpu(), len(self._sums)
            moved._sums = dict(zip(self._sums, values[:sums], strict=True))
            moved._maxima = dict(zip(self._maxima, values[sums:], strict=True))
        return moved

    @classmethod
    def of_parts(cls, parts: Sequence[Self]) -> Self:
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
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        numbers = means | self._maxima
        if not numbers:
            return {}
        stacked = torch.stack(list(numbers.values())).tolist()
        return dict(zip(numbers, stacked, strict=True))

    def _add(self, name: str, total: Tensor, count: int) -> None:
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def _maximum(self, name: str, value: Tensor) -> None:
        """Keep the largest value; NaN propagates."""
        self._maxima[name] = torch.maximum(self._maxima.get(name, value), value)
