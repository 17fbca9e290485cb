"""What all tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def translations_of_games(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep translations of ALFWorld games for themselves, not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HGPO_ALFWORLD_CACHE", str(tmp_path_factory.mktemp("translations")))
        yield
