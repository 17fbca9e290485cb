"""Calls of `hgpo` in this process."""

import io
import sys
from pathlib import Path

import pytest

from hgpo_rllib.cli.main import main


class Run:
    """One call of `hgpo`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object, stdin: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # or main() would set it for good
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *self._capsys.readouterr()


@pytest.fixture
def hgpo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the command."""
    return Run(capsys, monkeypatch)


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of change of all files."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}
