"""The fast engine against TextWorld's own on a hundred games. Half an hour: `pytest -m slow`."""

import tarfile
from pathlib import Path

import pytest

from hgpo_rllib.bench.alfworld import bench_alfworld
from tests.paths import ALFWORLD_ARCHIVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_answers_are_the_same_and_come_much_faster(tmp_path: Path) -> None:
    """Observations are equal on 40 official and 60 generated games with three policies."""
    if not ALFWORLD_ARCHIVE.is_file():
        pytest.skip("the archive of official ALFWorld games is not here")
    with tarfile.open(ALFWORLD_ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    tables = bench_alfworld(tmp_path, "valid_seen", official=40, generated=60)
    steps, starts, (many,) = tables["steps"], tables["starts"], tables["environments"]
    assert [(row["games"], row["episodes"]) for row in steps] == [
        ("kitchens", 60),
        ("other rooms", 60),
        ("generated", 180),
    ]
    assert sum(row["differing_answers"] for row in steps) == 0
    assert all(row["won"] >= row["episodes"] / 3 for row in steps), "the recorded solutions win"
    assert steps[0]["ratio"] >= 50
    assert starts[0]["load_ratio"] >= 20
    assert starts[0]["reset_ratio"] >= 20
    assert (many["environments"], many["games"]) == (128, 16)
    assert many["ready_s"] <= 10
    assert many["mb_each"] <= 5
