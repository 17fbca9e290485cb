"""Gauges of a run, scraped from Ray's endpoint as Prometheus does it."""

import contextlib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from hgpo_rllib.jsonl import read_jsonl
from hgpo_rllib.run import live_metrics
from hgpo_rllib.run.cluster import LOOPBACK
from hgpo_rllib.run.live_metrics import LiveMetrics
from hgpo_rllib.run.metrics import scalars
from tests.processes import wait_until

pytestmark = pytest.mark.integration
FORGOTTEN_AFTER = 25  # seconds; Ray drops a gauge 20 seconds after it was last set
HELD_OUT = ("success_rate", "standard_error", "episodes", "episode_length", "temperature", "s")


class Sample(NamedTuple):
    """The value of a gauge for one set of tags."""

    name: str
    tags: dict[str, str]
    value: float


def scrape(address: str) -> list[Sample]:
    """Return this project's samples at an address, without Ray's prefix and tags."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [
        Sample(
            sample.name.removeprefix("ray_"),
            {tag: value for tag, value in sample.labels.items() if tag in ("run", "k", "split")},
            sample.value,
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ray_hgpo_")
    ]


# A unit test checks that gauges are refreshed; that Ray then keeps them takes half a minute.
@pytest.mark.parametrize("seconds", [0, pytest.param(FORGOTTEN_AFTER, marks=pytest.mark.slow)])
def test_gauges_appear_at_the_endpoint_of_the_node_and_stay(cluster: None, seconds: int) -> None:
    """Gauges are served without a dashboard, on the loopback address only, and do not expire."""
    port = ray.nodes()[0]["MetricsExportPort"]
    address = f"{LOOPBACK}:{port}"
    row = {"iteration": 3, "success_rate": 0.625, "sync_s": 0.5, "level_fraction_k1": 0.25}
    evaluation = {"iteration": 3, "split": "valid_seen", "success_rate": 0.375}
    wanted = [
        Sample("hgpo_iteration", {"run": "endpoint"}, 3.0),
        Sample("hgpo_sync_s", {"run": "endpoint"}, 0.5),
        Sample("hgpo_success_rate", {"run": "endpoint"}, 0.625),
        Sample("hgpo_level_fraction", {"run": "endpoint", "k": "1"}, 0.25),
        Sample("hgpo_evaluation_success_rate", {"run": "endpoint", "split": "valid_seen"}, 0.375),
        Sample("hgpo_prompts_in_flight", {"run": "endpoint"}, 5.0),
    ]

    def ours() -> list[Sample]:
        return sorted((s for s in scrape(address) if s.tags["run"] == "endpoint"), key=repr)

    with LiveMetrics("endpoint", lambda: 5) as live:
        live.publish(scalars([row]))
        live.publish(scalars([evaluation]))
        wait_until(lambda: len(ours()) == len(wanted), 60)
        assert ours() == sorted(wanted, key=repr)
        time.sleep(seconds)
        assert ours() == sorted(wanted, key=repr)
    listening = {
        connection.laddr.ip
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert listening == {LOOPBACK}


def samples_of(row: dict, run: str) -> list[Sample]:
    """Return the samples of a row of metrics.jsonl."""
    shown = [live_metrics.sample(name, value, run) for name, value in scalars([row]).items()]
    return [Sample(*sample[:3]) for sample in shown]


def assert_prometheus_follows(run: Path, ray_files: Path) -> None:
    """Scrape Ray's targets until they show an iteration, and compare with its row."""
    file = ray_files / "ray" / "prom_metrics_service_discovery.json"
    wait_until(file.exists, 60)
    (job,) = json.loads(file.read_text())
    assert all(target.startswith(f"{LOOPBACK}:") for target in job["targets"])

    def shown() -> list[Sample] | None:
        samples = []
        for target in job["targets"]:  # some belong to the dashboard and the autoscaler
            with contextlib.suppress(urllib.error.URLError):  # Prometheus ignores them too
                samples += scrape(target)
        iterations = [s for s in samples if s.name == "hgpo_iteration"]
        return samples if iterations else None

    def complete() -> dict | None:
        samples = wait_until(shown, 60)
        (updates,) = [s.value for s in samples if s.name == "hgpo_iteration"]
        (row,) = [row for row in read_jsonl(run / "metrics.jsonl") if row["iteration"] == updates]
        wanted = samples_of(row, run.name)
        return row if all(sample in samples for sample in wanted) else None

    row = wait_until(complete, 60)
    present = [v for key, v in row.items() if key != "level_size_shares" and v is not None]
    published = samples_of(row, run.name)
    assert len({repr(sample) for sample in published}) == len(present), (
        "a number of metrics.jsonl has no gauge, or two"
    )
    names = {s.name for s in shown() or ()}
    others = {f"hgpo_evaluation_{name}" for name in HELD_OUT} | {"hgpo_prompts_in_flight"}
    assert names == {sample.name for sample in published} | others
