"""`hgpo bench publish` on small weights."""

import pytest

from hgpo_rllib.bench.publishing import bench_publishing

pytestmark = pytest.mark.slow


def test_weights_arrive_in_every_store() -> None:
    """Weights reach one and two stores; sizes that exceed the machine's memory are skipped."""
    rows = bench_publishing([0.05, 10_000.0], [1, 2], repeats=2)
    assert [(row["stores"], row["gb"]) for row in rows] == [(1, 0.05), (2, 0.05)]
    assert all(0 < row["published_s"] < row["everywhere_s"] for row in rows)
