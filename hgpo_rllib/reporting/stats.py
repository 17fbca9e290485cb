"""The few statistics a report states, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "n/a"


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error; either is None where it is not known."""

    value: float | None
    error: float | None = None

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two independent estimates."""
        if self.value is None or other.value is None:
            return Estimate(None)
        if self.error is None or other.error is None:
            return Estimate(self.value - other.value)
        return Estimate(self.value - other.value, math.hypot(self.error, other.error))


def number(row: Mapping[str, Any] | None, key: str) -> float | None:
    """The finite number under `key`, or None: a diverged loss is as absent as a missing one."""
    value = None if row is None else row.get(key)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def success(row: Mapping[str, Any] | None) -> Estimate:
    """Success rate of one evaluation row."""
    return Estimate(number(row, "success_rate"), number(row, "standard_error"))


def binomial(rate: float | None, episodes: float | None) -> Estimate:
    """A success rate over `episodes` episodes, with the binomial standard error."""
    if rate is None or not episodes:
        return Estimate(rate)
    return Estimate(rate, math.sqrt(max(rate * (1 - rate), 0.0) / episodes))


def over_seeds(values: Sequence[float | None]) -> Estimate:
    """Mean over the seeds that have a value; the error needs at least two of them."""
    known = [value for value in values if value is not None]
    if not known:
        return Estimate(None)
    mean = sum(known) / len(known)
    if len(known) < 2:
        return Estimate(mean)
    variance = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, math.sqrt(variance / len(known)))


def percent(estimate: Estimate) -> str:
    """`34.3 % ± 4.1`."""
    if estimate.value is None:
        return MISSING
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.1f}"
    return f"{100 * estimate.value:.1f} %{error}"


def points(estimate: Estimate) -> str:
    """A difference of rates in percentage points: `+12.5 ± 5.0`."""
    if estimate.value is None:
        return MISSING
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.1f}"
    return f"{100 * estimate.value:+.1f}{error}"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def decimal(value: float | None, digits: int = 2) -> str:
    """A plain number, or the mark for a missing one."""
    return MISSING if value is None else f"{value:,.{digits}f}"
