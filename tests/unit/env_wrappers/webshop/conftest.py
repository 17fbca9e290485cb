"""Shared fixtures of the WebShop tests."""

import tarfile
from pathlib import Path

import pytest

from env_wrappers.webshop.session import Session
from env_wrappers.webshop.shop import Shop, open_shop
from tests.paths import WEBSHOP_ARCHIVE
from tests.unit.env_wrappers.webshop.webshop_store import start


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the original's 1,000 products, which is not in the repository."""
    if not WEBSHOP_ARCHIVE.exists():
        pytest.skip(f"{WEBSHOP_ARCHIVE} is not there")
    folder = tmp_path_factory.mktemp("webshop")
    with tarfile.open(WEBSHOP_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "webshop_1k"


@pytest.fixture(scope="session")
def shop(store: Path) -> Shop:
    """Return a shop of 29 products."""
    return open_shop(store, nouns="words")


@pytest.fixture
def session(shop: Shop) -> Session:
    """Return a session on the index page."""
    return start(shop)
