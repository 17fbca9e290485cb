"""A recorded run."""

from pathlib import Path

import pytest

from tests.unit.reporting.reporting_rows import make_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")
