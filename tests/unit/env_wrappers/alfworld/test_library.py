"""The copy of Fast Downward's library that each engine loads."""

from pathlib import Path

import pytest
from fast_downward import interface

from env_wrappers.alfworld.memo import Core


def test_engines_copy_a_small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 engines with copies of the whole library, 34 MB each, would fill a disk."""
    copied = []
    copy = interface.shutil.copyfile
    monkeypatch.setattr(
        interface.shutil, "copyfile", lambda *paths: copied.append(Path(copy(*paths)).stat())
    )
    Core()
    assert len(copied) == 1
    assert copied[0].st_size < 2e6
