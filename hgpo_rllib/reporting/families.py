"""Held-out success by family of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hgpo_rllib.reporting.curves import Curve
from hgpo_rllib.reporting.run_data import Row, RunData
from hgpo_rllib.reporting.stats import Estimate, binomial, number, over_seeds

Rates = dict[str, Estimate]


def family_rates(curves: Sequence[Curve]) -> dict[str, Rates]:
    """By name of a bar, the rate of each family: of one curve before and after, else after.

    The error is the binomial one for a single run, and over runs for several.
    """
    if len(curves) == 1:
        found = {"before": _rates(curves[0], after=False), "after": _rates(curves[0], after=True)}
        return {name: rates for name, rates in found.items() if rates}
    after = {curve.name: _rates(curve, after=True) for curve in curves}
    return after if any(after.values()) else {}


def _rates(curve: Curve, after: bool) -> Rates:
    tables = [_table(run, after) for run in curve.runs]
    names = sorted({name for table in tables for name in table})
    return {name: _rate([table.get(name) for table in tables]) for name in names}


def _table(run: RunData, after: bool) -> Mapping[str, Row]:
    row = (run.after() if after else run.before()) or {}
    return row.get("by_task_type") or {}


def _rate(rows: Sequence[Row | None]) -> Estimate:
    if len(rows) == 1:
        return binomial(number(rows[0], "success_rate"), number(rows[0], "episodes"))
    return over_seeds([number(row, "success_rate") for row in rows])
