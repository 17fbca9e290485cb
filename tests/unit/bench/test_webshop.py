"""Measurements of `hgpo bench webshop`. Speed is not tested."""

import json
from pathlib import Path

import pytest

from env_wrappers.webshop.shop import open_shop
from hgpo_rllib.bench import webshop
from hgpo_rllib.bench.webshop import make_queries, measure_play


def test_one_environment_and_more(store: Path) -> None:
    """All environments run in this process; integration tests cover separate processes."""
    open_shop(store)
    row = measure_play(store, steps=300, environments=3)
    assert (row["products"], row["goals"]) == (29, len(open_shop(store).goals))
    assert 300 <= row["steps"] < 315
    assert row["more_envs"] == 3
    assert row["steps_per_s"] > 0
    assert row["first_environment_ms"] > 0


def test_given_data_are_not_generated(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webshop, "_in_new_process", lambda function, *given: function(*given))
    found = webshop.bench_webshop(store, 1, steps=5, environments=2)
    assert "building" not in found
    assert found["store"][0]["products"] == 29
    json.dumps(found)


def test_queries_are_all_different(store: Path) -> None:
    """No query occurs twice, since a repeated query would be answered from a cache."""
    shop = open_shop(store)
    queries = make_queries(shop.catalogue, shop.goals)
    assert len(set(queries)) == len(queries) > 20
