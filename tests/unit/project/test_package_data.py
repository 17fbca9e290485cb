"""The data files in wheels."""

import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE_DATA = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
    "package-data"
]


@pytest.mark.parametrize("package", ["env_wrappers", "hgpo_rllib", "tuned_examples"])
def test_wheels_contain_all_data_files(package: str) -> None:
    """Patterns of package-data match all data files, as setuptools silently omits others."""
    folder = ROOT / package
    data: set[Path] = {
        file
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc", ".so")
    }
    assert data
    assert data <= {file for pattern in PACKAGE_DATA[package] for file in folder.glob(pattern)}
