"""Format numbers for reports and the console. A missing number is NaN."""

import math
from collections.abc import Mapping
from typing import Any

MISSING = "n/a"


def number(row: Mapping[str, Any], key: str) -> float:
    """Return the finite number under `key`, or NaN; a diverged loss counts as missing."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def percent(rate: float, error: float = math.nan) -> str:
    """Format a rate with its standard error: `34.3 % ± 4.1`."""
    return MISSING if math.isnan(rate) else f"{100 * rate:.1f} %{_plus_minus(error)}"


def points(difference: float, error: float = math.nan) -> str:
    """Format a difference of rates in percentage points: `+12.5 ± 5.0`."""
    if math.isnan(difference):
        return MISSING
    return f"{round(100 * difference, 1) + 0.0:+.1f}{_plus_minus(error)}"  # + 0.0: no "-0.0"


def _plus_minus(error: float) -> str:
    return "" if math.isnan(error) else f" ± {100 * error:.1f}"


def duration(seconds: float) -> str:
    """Format a duration: `4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if math.isnan(seconds):
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def decimal(value: float, digits: int = 2) -> str:
    """Format a plain number."""
    return MISSING if math.isnan(value) else f"{value:,.{digits}f}"
