"""Fixture of a small WebShop store."""

from pathlib import Path

import pytest

from tests.unit.env_wrappers.webshop.webshop_store import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a small store."""
    return write_store(tmp_path_factory.mktemp("webshop") / "data")
