"""The fast engine against TextWorld's own on a hundred games: half an hour, `pytest -m slow`."""

import tarfile
from pathlib import Path

import pytest

from hgpo_rllib.bench.alfworld import EngineWorkload, bench_alfworld
from tests.paths import SHARED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
ARCHIVE = SHARED / "data/alfworld_games.tar.xz"


def test_answers_are_the_same_and_come_much_faster(tmp_path: Path) -> None:
    """On 40 genuine and 60 generated games, by three policies, to the end of each episode."""
    if not ARCHIVE.is_file():
        pytest.skip("the archive of genuine ALFWorld games is not here")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    rows, crowd = bench_alfworld(EngineWorkload(tmp_path, "valid_seen", genuine=40, generated=60))
    assert [(row.kind, row.games) for row in rows] == [
        ("kitchens", 20),
        ("other rooms", 20),
        ("generated", 60),
    ]
    assert sum(row.differing_answers for row in rows) == 0
    assert all(row.wins >= row.games for row in rows), "the recorded solutions win"
    kitchens = rows[0]
    assert kitchens.step_ratio >= 50
    assert kitchens.load_ratio >= 20
    assert kitchens.reset_ratio >= 20
    assert (crowd.environments, crowd.games) == (128, 16)
    assert crowd.ready_seconds <= 10
    assert crowd.megabytes <= 5
