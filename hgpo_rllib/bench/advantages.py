"""`hgpo bench advantages`: compare the estimator with a dictionary-based one by batch size."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from hgpo_rllib.advantages import EstimatorSettings, StepArrays
from hgpo_rllib.advantages.hierarchy import hgpo
from hgpo_rllib.bench.measure import Row, peak_mib, timed
from hgpo_rllib.errors import ConfigError

SETTINGS = EstimatorSettings(context_length=4)
GROUP_SIZE, EPISODE, PLACES = 8, 50, 20  # episodes per task, steps per episode, places per house
REPEATS = 7
REPEATED_BELOW = 200_000  # steps; larger batches are timed once, as dictionaries are slow


def synthetic_batch(steps: int) -> dict[str, list[Any]]:
    """Generate random walks through the places of a house, one house per task; half succeed.

    Returns:
        Raw columns of a trainer, as lists; ids and observations are strings.
    """
    rng = np.random.default_rng(0)
    episodes = steps // EPISODE
    walk = (rng.integers(0, 3, (episodes, EPISODE)) - 1).cumsum(axis=1) % PLACES
    won = rng.random(episodes) < 0.5
    returns = won[:, None] * 10 * 0.95 ** np.arange(EPISODE - 1, -1, -1)
    texts = [f"You arrive at drawer {i}. The drawer {i} is closed." for i in range(PLACES)]
    return {
        "task": [f"game-{e // GROUP_SIZE}" for e in range(episodes) for _ in range(EPISODE)],
        "trajectory": [f"episode-{e}" for e in range(episodes) for _ in range(EPISODE)],
        "time": list(range(EPISODE)) * episodes,
        "anchor": [texts[place] for place in walk.reshape(-1).tolist()],
        "step_return": returns.reshape(-1).tolist(),
    }


def bench_advantages(sizes: Sequence[int]) -> list[Row]:
    """Time both implementations on the same batches, one batch size after the other.

    Args:
        sizes: steps of each batch, multiples of 400 (a task has 8 episodes of 50 steps).

    Returns:
        One row per size: median times of the estimator from raw columns (``columns_ms``) and from
        arrays (``arrays_ms``), and of dictionaries from raw columns (``dictionary_ms``); ``ratio``
        of the third to the first; ``peak_mib``, the peak memory beyond the columns; and the largest
        difference between the advantages of both implementations.

    Raises:
        ConfigError: a size is not a positive multiple of 400.
    """
    wrong = [size for size in sizes if size < 1 or size % (GROUP_SIZE * EPISODE)]
    if wrong:
        raise ConfigError(
            f"--size: a batch of {wrong[0]} steps: take multiples of {GROUP_SIZE * EPISODE}"
        )
    return [
        _compare(synthetic_batch(size), REPEATS if size < REPEATED_BELOW else 1) for size in sizes
    ]


def _compare(columns: dict[str, list[Any]], repeats: int) -> Row:
    arrays = StepArrays.from_columns(**columns)  # type: ignore[arg-type]
    sides: dict[str, Callable[[], Any]] = {
        "columns": lambda: hgpo(StepArrays.from_columns(**columns), SETTINGS),  # type: ignore[arg-type]
        "arrays": lambda: hgpo(arrays, SETTINGS),
        "dictionary": lambda: hgpo_by_dictionary(**columns, settings=SETTINGS),
    }
    turns = [{name: timed(side) for name, side in sides.items()} for _ in range(repeats)]
    ms = {name: 1000 * statistics.median(turn[name][0] for turn in turns) for name in sides}
    answers = {name: np.asarray(answer) for name, (_, answer) in turns[-1].items()}
    return {
        "steps": len(arrays),
        **{f"{name}_ms": median for name, median in ms.items()},
        "ratio": ms["dictionary"] / ms["columns"],
        "us_per_step": 1000 * ms["columns"] / len(arrays),
        "peak_mib": peak_mib(sides["columns"]),
        "difference": float(np.abs(answers["columns"] - answers["dictionary"]).max()),
    }


def hgpo_by_dictionary(
    task: Sequence[Hashable],
    trajectory: Sequence[Hashable],
    time: Sequence[int],
    anchor: Sequence[Hashable],
    step_return: Sequence[float],
    settings: EstimatorSettings,
) -> list[float]:
    """Compute `hgpo_rllib.advantages.hierarchy.hgpo` with dictionaries of lists, as a baseline.

    It follows the definitions literally and shares no code with `hgpo_rllib.advantages`, so the
    tests also compare both implementations.
    """
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
    moments = {key: _mean_and_std(members) for key, members in groups.items()}
    offset = 1 if settings.contexts == "paper" else 2
    advantages = []
    for row, value in enumerate(step_return):
        numerator = denominator = 0.0
        for k, key in enumerate(keys[row]):
            mean, std, varies = moments[key]
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
