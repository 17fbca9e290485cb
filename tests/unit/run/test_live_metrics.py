"""Live gauges of a run, and whether dashboard and scrape file cover all of them."""

import json
import re
import shutil
import subprocess
import time
from collections import defaultdict

import pytest
import yaml
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

from hgpo_rllib.metrics import EVALUATION_METRICS, METRICS
from hgpo_rllib.run import live_metrics
from hgpo_rllib.run.live_metrics import LiveMetrics, sample
from hgpo_rllib.run.metrics import scalars
from tests.paths import ROOT
from tests.processes import wait_until
from tests.unit.reporting import reporting_rows

DASHBOARD = json.loads((ROOT / "docker/grafana/dashboards/hgpo.json").read_text())
SCRAPE_FILE = ROOT / "docker/prometheus.yml"
PROVISIONING = ROOT / "docker/grafana/provisioning"
TAGS = {
    "hgpo_prompts_in_flight": {"run"},
    **{
        metric.gauge: {"run", *re.findall(r"\{(\w+)\}", metric.name)} for metric in METRICS.values()
    },
    **{live_metrics.evaluation_gauge(name): {"run", "split"} for name in EVALUATION_METRICS},
}
NAMES = TAGS.keys()


def names_in(expression: str) -> set[str]:
    """Return the names of this project's gauges in a query, without Ray's prefix."""
    return set(re.findall(r"\bray_(hgpo_\w+)", expression))


def test_each_value_has_its_gauge() -> None:
    row = {
        "iteration": 7,
        "success_rate": 0.5,
        "level_fraction_k10": 0.25,
        "success_rate/my_k2": 0.75,
        "oracle_gap_hgpo": None,
        "oracle_gap_step": 0.125,
        "level_size_shares": [[1.0]],
    }
    assert [sample(name, value, "r")[:3] for name, value in scalars([row]).items()] == [
        ("hgpo_iteration", {"run": "r"}, 7.0),
        ("hgpo_success_rate", {"run": "r"}, 0.5),
        ("hgpo_level_fraction", {"run": "r", "k": "10"}, 0.25),
        ("hgpo_success_rate_by_environment", {"run": "r", "environment": "my_k2"}, 0.75),
        ("hgpo_oracle_gap_step", {"run": "r"}, 0.125),
    ]


def test_an_evaluation_has_gauges_per_split() -> None:
    rows = [reporting_rows.evaluation_row(0, split, 0.5, 0.1, 25) for split in ("seen", "all")]
    samples = [sample(name, value, "r") for name, value in scalars(rows).items()]
    assert len(samples) == 2 * 4
    assert [s[:3] for s in samples if s.name == "hgpo_evaluation_success_rate"] == [
        ("hgpo_evaluation_success_rate", {"run": "r", "split": "seen"}, 0.5),
        ("hgpo_evaluation_success_rate", {"run": "r", "split": "all"}, 0.5),
    ]


class FakeGauge:
    """A gauge that records its values."""

    calls: defaultdict[str, list[tuple[float, dict[str, str]]]]

    def __init__(self, name: str, text: str, tag_keys: tuple[str, ...]) -> None:
        self.name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        """See ray.util.metrics.Gauge."""
        self.calls[self.name].append((value, tags))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> defaultdict[str, list[tuple[float, dict[str, str]]]]:
    """Return the recorded calls of the gauges, which are refreshed every 10 ms."""
    FakeGauge.calls = defaultdict(list)
    monkeypatch.setattr(live_metrics, "Gauge", FakeGauge)
    monkeypatch.setattr(live_metrics, "REFRESH_SECONDS", 0.01)
    return FakeGauge.calls


def test_gauges_are_set_again_until_the_block_ends(
    calls: defaultdict[str, list[tuple[float, dict[str, str]]]],
) -> None:
    """Gauges are refreshed, because Ray drops a gauge 20 seconds after it was last set."""
    in_flight = 3
    with LiveMetrics("r", lambda: in_flight) as live:
        live.publish({"success_rate": 0.5, "oracle_gap_step": 1.0})
        live.publish({"evaluation/all/success_rate": 0.125})
        wait_until(lambda: len(calls["hgpo_success_rate"]) > 3, 10)
        live.publish({"success_rate": 0.75})
        in_flight = 4
        wait_until(lambda: calls["hgpo_success_rate"][-1] == (0.75, {"run": "r"}), 10)
        evaluated = (0.125, {"run": "r", "split": "all"})
        wait_until(lambda: calls["hgpo_evaluation_success_rate"][-1] == evaluated, 10)
        wait_until(lambda: calls["hgpo_prompts_in_flight"][-1] == (4, {"run": "r"}), 10)
        gaps = len(calls["hgpo_oracle_gap_step"])
        wait_until(lambda: calls["hgpo_success_rate"].count((0.75, {"run": "r"})) > 3, 10)
        assert len(calls["hgpo_oracle_gap_step"]) == gaps  # a removed value is not set again
    sets = len(calls["hgpo_success_rate"])
    time.sleep(0.05)
    assert len(calls["hgpo_success_rate"]) == sets


def test_an_undeclared_metric_is_an_error() -> None:
    for name in ("no_such", "no_such_k1", "level_fraction_k", "success_rate_k0"):
        with pytest.raises(KeyError, match=f"'{name}' is not declared"):
            sample(name, 1.0, "r")


def test_names_follow_the_rules_of_prometheus() -> None:
    assert len(NAMES) == 1 + len(METRICS) + len(EVALUATION_METRICS)
    for name in NAMES:
        assert re.fullmatch(r"hgpo(_[a-z]+)+", name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket"))  # reserved suffixes
    assert all(metric.description.isascii() for metric in METRICS.values())  # for Ray


def test_the_dashboard_asks_for_every_gauge_and_for_no_other() -> None:
    expressions = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
    assert set().union(*map(names_in, expressions)) == NAMES
    assert all('{run=~"$run"}' in expression for expression in expressions)
    for variable in DASHBOARD["templating"]["list"]:
        assert names_in(json.dumps(variable)) <= NAMES


def test_the_dashboard_shows_tags_that_the_gauges_have() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            (name,) = names_in(target["expr"])
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == TAGS[name]


def test_panels_have_a_place_of_their_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24  # Grafana has 24 columns


def test_the_scrape_file_reads_what_ray_writes() -> None:
    config = yaml.safe_load(SCRAPE_FILE.read_text())
    assert config["global"]["scrape_interval"] == "10s"
    (job,) = config["scrape_configs"]
    (discovery,) = job["file_sd_configs"]
    assert discovery["files"] == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]
    assert job["job_name"] == "ray"


def test_promtool_accepts_the_scrape_file() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian: prometheus) is not installed")
    subprocess.run([promtool, "check", "config", str(SCRAPE_FILE)], check=True)


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert (source["type"], source["url"]) == ("prometheus", "$HGPO_PROMETHEUS_URL")
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards/hgpo.yml").read_text())["providers"]
    assert (provider["type"], provider["options"]) == ("file", {"path": "$HGPO_DASHBOARDS"})
