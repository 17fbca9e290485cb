"""Running means and maxima of an update, kept on the device until they are asked for."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

LEARNER_METRICS = (
    "loss",
    "policy_loss",
    "kl",
    "clip_fraction",
    "entropy",
    "grad_norm",
    "ratio_max",
    "behaviour_logp_gap",
    "behaviour_logp_gap_mean",
    "behaviour_kl",
    "importance_weight",
    "importance_cut_fraction",
    "value_loss",
    "value_clip_fraction",
    "critic_grad_norm",
    "skipped_batches",
)
"""What an update reports, besides what RLlib adds; docs/algorithm.md explains each."""


class Statistics:
    """Means over tokens, numbers that a mini-batch has once, and maxima, by name."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._maxima: dict[str, Tensor] = {}
        self._parts: set[str] = set()

    def add(self, values: Mapping[str, Tensor]) -> None:
        """One value per token under each name."""
        for name, value in values.items():
            self._add(name, value.detach().sum(dtype=torch.float64), len(value))

    def add_part(self, name: str, part: Tensor) -> None:
        """One of the parts that add up to a mini-batch's number; `means` averages mini-batches."""
        self._add(name, part.detach().double(), 0)
        self._counts[name] = 1
        self._parts.add(name)

    def maximum(self, name: str, value: Tensor) -> None:
        """Keep the largest value; NaN stays."""
        value = value.detach().double()
        before = self._maxima.get(name, value)
        self._maxima[name] = torch.maximum(before, value)

    def merge(self, other: Self) -> None:
        """Take in what `other` has gathered, of another mini-batch."""
        for name, total in other._sums.items():
            self._add(name, total, other._counts[name])
        for name, value in other._maxima.items():
            self.maximum(name, value)

    def on_host(self) -> Self:
        """The same in the host's memory, to be sent to other learners; one transfer for all."""
        moved = type(self)()
        moved._counts, moved._parts = self._counts, self._parts
        numbers = [*self._sums.values(), *self._maxima.values()]
        if numbers:
            values, sums = torch.stack(numbers).cpu(), len(self._sums)
            moved._sums = dict(zip(self._sums, values[:sums], strict=True))
            moved._maxima = dict(zip(self._maxima, values[sums:], strict=True))
        return moved

    @classmethod
    def of_parts(cls, parts: Sequence[Self]) -> Self:
        """Of a mini-batch that several learners had a part of each."""
        whole = cls()
        for part in parts:
            whole.merge(part)
            for name in part._parts:
                whole._counts[name] = 1
        return whole

    def values(self) -> dict[str, float]:
        """Means and maxima; one transfer from the device for all."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        numbers = means | self._maxima
        if not numbers:
            return {}
        stacked = torch.stack(list(numbers.values())).tolist()
        return dict(zip(numbers, stacked, strict=True))

    def _add(self, name: str, total: Tensor, count: int) -> None:
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count
