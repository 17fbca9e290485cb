"""Fixtures of official games, from the archive beside the repository."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from env_wrappers.alfworld.games import find_games
from tests.paths import ALFWORLD_ARCHIVE


@pytest.fixture(scope="session")
def official_games(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return three games of the ALFWorld data set."""
    if not ALFWORLD_ARCHIVE.is_file():
        pytest.skip("the archive of official ALFWorld games is not here")
    out = tmp_path_factory.mktemp("official")
    with tarfile.open(ALFWORLD_ARCHIVE) as archive:
        for member in _first_trials(archive, count=3):
            archive.extract(member, out, filter="data")
    return find_games(out, "valid_seen")


@pytest.fixture
def official_game(official_games: list[Path]) -> Path:
    """Return one official game."""
    return official_games[0]


def _first_trials(archive: tarfile.TarFile, count: int) -> Iterator[tarfile.TarInfo]:
    """Yield the files of the first small (bathroom, bedroom) trials, reading no further."""
    trials: set[str] = set()
    for member in archive:
        parts = Path(member.name).parts
        if (
            len(parts) != 5
            or parts[1] != "valid_seen"
            or parts[2].rsplit("-", 1)[-1][0] not in "34"
        ):
            continue
        if parts[3] not in trials and len(trials) == count:
            return
        trials.add(parts[3])
        yield member
