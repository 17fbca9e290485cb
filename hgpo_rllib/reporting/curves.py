"""Runs that are seeds of one experiment make one curve, named by what its settings differ in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hgpo_rllib.reporting.run_data import Row, RunData
from hgpo_rllib.reporting.stats import number, over_seeds

NO_DIFFERENCE = ("seed", "name", "output", "cache", "checkpoint_interval", "cluster", "tracking")
"""Settings and sections that may differ between the seeds of one experiment."""
SPEAKS_FOR_ITSELF = "algorithm.estimator"
LONGEST_VALUE = 24

Settings = dict[str, str]
Rows = Callable[[RunData], Sequence[Row]]


@dataclass(frozen=True)
class Curve:
    """Runs that differ in no setting but those of `NO_DIFFERENCE`."""

    name: str
    runs: Sequence[RunData]


@dataclass(frozen=True)
class Band:
    """A value by iteration: mean over runs and standard error, 0 for a single run."""

    x: list[float]
    mean: list[float]
    error: list[float]


def curves_of(runs: Sequence[RunData]) -> list[Curve]:
    """Group runs by their settings, in the order in which each group's first run is given.

    Settings that not all runs know (of another version of this project) are not compared.
    """
    configs = [compared_settings(run.config) for run in runs]
    keys = differing_keys(configs)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, config in enumerate(configs):
        groups.setdefault(tuple(config[key] for key in keys), []).append(index)
    names = _names([configs[members[0]] for members in groups.values()], keys)
    return [
        Curve(name or runs[members[0]].name, [runs[index] for index in members])
        for name, members in zip(names, groups.values(), strict=True)
    ]


def compared_settings(config: Row) -> Settings:
    """Dotted settings as text, without those of `NO_DIFFERENCE`."""
    return {
        key: _text(value)
        for key, value in flat(config).items()
        if key.split(".")[0] not in NO_DIFFERENCE
    }


def _text(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value)  # 1 and 1.0 are the same setting


def differing_keys(configs: Sequence[Settings]) -> list[str]:
    """The keys that all have, with values that are not the same; the estimator comes first."""
    shared = [key for key in configs[0] if all(key in config for config in configs)]
    found = [key for key in shared if len({config[key] for config in configs}) > 1]
    return sorted(found, key=lambda key: key != SPEAKS_FOR_ITSELF)


def _names(configs: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """By as few of the keys as tell all apart."""
    used: list[str] = []
    distinct = 1
    for key in keys:
        values = {tuple(config[k] for k in (*used, key)) for config in configs}
        if len(values) > distinct:
            used.append(key)
            distinct = len(values)
    return [" · ".join(_part(key, config[key], used) for key in used) for config in configs]


def _part(key: str, text: str, keys: Sequence[str]) -> str:
    text = text if len(text) <= LONGEST_VALUE else f"…{text[-LONGEST_VALUE:]}"
    if key == SPEAKS_FOR_ITSELF:
        return text
    short = key.rpartition(".")[2]
    alike = sum(other.rpartition(".")[2] == short for other in keys) > 1
    return f"{key if alike else short}={text}"


def band(curve: Curve, key: str, rows: Rows = lambda run: run.metrics) -> Band:
    """The numbers under `key`, over the iterations for which every run of the curve has one."""
    tables = [
        {
            float(row["iteration"]): value
            for row in rows(run)
            if (value := number(row, key)) is not None
        }
        for run in curve.runs
    ]
    shared = sorted(set.intersection(*map(set, tables)))
    estimates = [over_seeds([table[x] for table in tables]) for x in shared]
    means = [math.nan if e.value is None else e.value for e in estimates]
    return Band(shared, means, [e.error or 0.0 for e in estimates])


def flat(values: Row, prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found
