"""Headless Chromium for tests of pages."""

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


class Browser:
    """Headless Chromium, started again for each page."""

    def __init__(self, profile: Path):
        self._profile = profile

    def _run(self, *options: str) -> str:
        assert CHROMIUM is not None
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--enable-logging=stderr", f"--user-data-dir={self._profile}", *options),
        ]
        for seconds in (60, 120):  # on a busy machine, Chromium may print the page and not exit
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=seconds, check=True
                )
                break
        else:
            pytest.fail("Chromium does not end")
        # Console messages report blocked or missing resources and errors.
        assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
        return done.stdout

    def open(self, address: str, width: int = 1280) -> str:
        """Return the page's DOM after its scripts have run."""
        return self._run("--dump-dom", f"--window-size={width},900", address)

    def picture(self, address: str, file: Path, width: int) -> bytes:
        """Return a screenshot of the page as a PNG."""
        self._run(f"--screenshot={file}", f"--window-size={width},900", address)
        return file.read_bytes()


def is_drawn(png: bytes, width: int) -> bool:
    """Return whether this is a nonempty PNG of that width."""
    return png[:4] == b"\x89PNG" and struct.unpack(">I", png[16:20]) == (width,) and len(png) > 5000
