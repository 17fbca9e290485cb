"""Generate docs/metrics.md and the Grafana dashboard from `hgpo_rllib.metrics`.

Run ``python docs/metrics_reference.py`` after changing the metrics; a test fails while the
files are out of date.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from hgpo_rllib.metrics import EVALUATION, EVALUATION_METRICS, PANELS, Metric, Panel
from hgpo_rllib.reporting.markdown import table
from hgpo_rllib.run.live_metrics import IN_FLIGHT, evaluation_gauge

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "hgpo.json"
INTRODUCTION = """# Metrics

All metrics of a run, with unit and meaning. `python docs/metrics_reference.py` generates this page
from `hgpo_rllib/metrics.py`; edit that file. A metric that is declared and computed is in all of
these:

- a line per iteration of `metrics.jsonl` in the run directory; `null`: not measured,
- TensorBoard and [trackers](integrations.md), under the same name,
- a column of `metrics` in [`hgpo_rllib.results`](dataframes.md),
- a gauge `hgpo_<name>` for [Prometheus](monitoring.md), and the Grafana dashboard,
- a figure of the report, unless it is listed under `volume` below.

A ratio is a share from 0 to 1. A token mean covers all response tokens that pass through the model
in the update, each computed with the weights of its mini-batch. Skipped mini-batches count in
`skipped_batches` only. `{k}` stands for the depths 0 to K; the gauges of such metrics lack `_k{k}`
and have a tag `k`. `{environment}` stands for the names of a mixture's environments; the
gauges of such metrics end with `_by_environment` and have a tag `environment`.

Besides numbers, a line of `metrics.jsonl` has `level_size_shares`: per depth, the share of steps by
the size of their group (1, 2, 3-4, 5-8, 9-16, 17-32, 33 or more).
"""
EVALUATION_TEXT = """## Evaluations

A line of `evaluation.jsonl` per evaluation and split: `iteration` (0 is before training), `split`
(`all`: the episodes of all splits together), `by_task_type` (`success_rate`, `standard_error` and
`episodes` per task type), `by_task` (number, episodes and successes of each task), and the numbers
below. Gauges are named `hgpo_evaluation_<name>`, that of `evaluation_s` `hgpo_evaluation_s`, and
have a tag `split`.
"""
GRAFANA_UNITS = {"ratio": "percentunit", "s": "s"}
COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # panels side by side; of Grafana's 24 columns
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def render_page() -> str:
    """Return the text of docs/metrics.md."""
    parts = [INTRODUCTION]
    for figure, panels in groupby(PANELS, key=lambda panel: panel.figure):
        rows = (metric for panel in panels for metric in panel.metrics)
        parts.append(f"## {figure.capitalize()}\n\n{_table(rows)}")
    parts.append(f"{EVALUATION_TEXT}\n{_table(EVALUATION_METRICS.values())}")
    return "\n".join(parts)


def _table(metrics: Iterable[Metric]) -> str:
    rows = [(f"`{m.name}`", m.unit, m.reduction, m.description) for m in metrics]
    return table(("name", "unit", "over the iteration", "meaning"), rows) + "\n"


def render_dashboard() -> str:
    """Return the dashboard with panels for all metrics, in the format of Grafana 9 and later."""
    panels = [_panel(panel, _targets(panel, evaluation=True)) for panel in EVALUATION]
    panels += [_panel(panel, _targets(panel)) for panel in PANELS]
    waiting = Panel("", "Prompts in flight", (Metric(IN_FLIGHT, "", "", ""),))
    panels.append(_panel(waiting, [_target(IN_FLIGHT)]))
    for index, panel in enumerate(panels):
        row, column = divmod(index, COLUMNS)
        panel["id"] = index + 1
        panel["gridPos"] = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * column, "y": HEIGHT * row}
    # All but the panels is written by hand.
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8")) | {"panels": panels}
    return json.dumps(dashboard, indent=2) + "\n"


def _targets(panel: Panel, evaluation: bool = False) -> list[dict[str, Any]]:
    targets = []
    for metric in panel.metrics:
        name = evaluation_gauge(metric.name) if evaluation else metric.gauge
        split = " {{split}}" if evaluation else ""
        label = f" {metric.label}" if metric.label else ""
        tags = [f" {{{tag}}}" for tag in ("{k}", "{environment}") if tag in metric.name]
        targets.append(_target(name, "".join([split, label, *tags])))
    return targets


def _target(gauge: str, legend: str = "") -> dict[str, Any]:
    return {"expr": f'ray_{gauge}{{run=~"$run"}}', "legendFormat": "{{run}}" + legend}


def _panel(panel: Panel, targets: list[dict[str, Any]]) -> dict[str, Any]:
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 2, "showPoints": "never"}
    if panel.log:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    defaults: dict[str, Any] = {"unit": GRAFANA_UNITS.get(panel.unit, "short"), "custom": custom}
    if panel.from_zero:
        defaults["min"] = 0
    if panel.full_range:
        defaults["max"] = 1
    return {
        "type": "timeseries",
        "title": panel.heading,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "none"},
        },
        "targets": [
            {"datasource": SOURCE, "refId": chr(ord("A") + index)} | target
            for index, target in enumerate(targets)
        ],
    }


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
    DASHBOARD.write_text(render_dashboard(), encoding="utf-8")
