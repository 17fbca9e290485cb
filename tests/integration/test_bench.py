"""`hgpo bench` on environments, in separate processes; speeds are not checked."""

import os
from pathlib import Path

import pytest

from env_wrappers.alfworld.translations import CACHE_VARIABLE
from hgpo_rllib.bench.alfworld import bench_alfworld
from hgpo_rllib.bench.webshop import bench_webshop
from tests.unit.conftest import generated_games as generated_games  # a fixture

pytestmark = pytest.mark.integration


@pytest.mark.slow  # the unit tests compare the engines too
def test_alfworlds_engines_agree_on_a_game(
    tmp_path: Path, generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both engines agree for three policies, and the user's cache is not changed."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    tables = bench_alfworld(
        generated_games, "valid_seen", official=1, generated=0, environments=8, max_steps=6
    )
    (steps,), (starts,), (many,) = tables["steps"], tables["starts"], tables["environments"]
    assert (steps["games"], steps["episodes"]) == ("other rooms", 3)
    assert steps["differing_answers"] == 0
    assert 6 < steps["steps"] <= 18
    assert starts["textworld_load_ms"] > starts["textworld_reset_ms"] > starts["reset_ms"] > 0
    assert steps["textworld_steps_per_s"] > 0
    assert (many["environments"], many["games"]) == (8, 1)
    assert many["ready_s"] > 0
    assert os.environ[CACHE_VARIABLE] == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_generated_webshop_store_is_built_and_played() -> None:
    tables = bench_webshop(None, products=80, steps=5, environments=2)
    (building,), (store,) = tables["building"], tables["store"]
    assert building["products"] == store["products"] == 80
    assert building["goals"] == store["goals"] > 80
    assert 0.02 < building["peak_gb"] < 2
    assert 0 < building["products_and_index_min"] < 1
    assert 0.02 < store["resident_gb"] < 2
    assert store["more_envs"] == 2
    assert 0 < store["median_query_ms"] <= store["p95_query_ms"]
