"""The copy of Fast Downward's library that each engine loads."""

from pathlib import Path

import pytest
from fast_downward import interface

from env_wrappers.alfworld.memo import CachedPddlEnv


def test_engines_copy_a_small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine copies a library of less than 2 MB instead of the whole 34 MB."""
    copied = []
    copy = interface.shutil.copyfile
    monkeypatch.setattr(
        interface.shutil, "copyfile", lambda *paths: copied.append(Path(copy(*paths)).stat())
    )
    CachedPddlEnv()
    assert len(copied) == 1
    assert copied[0].st_size < 2e6
