"""Folders and archives that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""
SHARED = ROOT.parent / "shared"
"""Official data and recordings, beside the repository; tests that need them skip without."""
ALFWORLD_ARCHIVE = SHARED / "data/alfworld_games.tar.xz"
WEBSHOP_ARCHIVE = SHARED / "data/webshop_1k.tar.xz"
