"""Straightforward implementation of HGPO with dictionaries of lists, as a baseline.

It follows the definitions literally and shares no code with `hgpo_rllib.advantages`, so the tests
also compare both implementations.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from hgpo_rllib.advantages import EstimatorSettings


def hgpo_by_dictionary(
    task: Sequence[Hashable],
    trajectory: Sequence[Hashable],
    time: Sequence[int],
    anchor: Sequence[Hashable],
    step_return: Sequence[float],
    settings: EstimatorSettings,
) -> list[float]:
    """Compute advantages of steps in any order; see `hgpo_rllib.advantages.hierarchy.hgpo`."""
    rows_of: dict[Hashable, list[int]] = defaultdict(list)
    for row in sorted(range(len(time)), key=time.__getitem__):
        rows_of[trajectory[row]].append(row)
    groups: dict[tuple, list[float]] = defaultdict(list)
    keys: dict[int, list[tuple]] = {}  # group keys of each step, one per level
    for rows in rows_of.values():
        states = [anchor[row] for row in rows]
        for t, row in enumerate(rows):
            depth = settings.context_length
            if settings.contexts == "released":
                depth = min(depth, t)
            keys[row] = [(task[row], k, *states[max(0, t - k) : t + 1]) for k in range(depth + 1)]
            for key in keys[row]:
                groups[key].append(step_return[row])
    statistics = {key: _mean_and_std(members) for key, members in groups.items()}
    offset = 1 if settings.contexts == "paper" else 2
    advantages = []
    for row, value in enumerate(step_return):
        numerator = denominator = 0.0
        for k, key in enumerate(keys[row]):
            mean, std, varies = statistics[key]
            advantage = value - mean
            if settings.normalize == "mean_std":
                advantage /= std + 1e-6
            if varies and advantage != 0:
                weight = (k + offset) ** settings.weight_alpha
                numerator += weight * advantage
                denominator += weight
        advantages.append(numerator / denominator if denominator else 0.0)
    return advantages


def _mean_and_std(members: list[float]) -> tuple[float, float, bool]:
    mean = sum(members) / len(members)
    variance = sum((value - mean) ** 2 for value in members) / len(members)
    return mean, variance**0.5, min(members) < max(members)
