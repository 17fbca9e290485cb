"""Helpers that run `hgpo` and check its errors."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub.constants
import pytest

from hgpo_rllib.cli.main import main
from tests.paths import ROOT

POCKET = ROOT / "tuned_examples/alfworld_pocket.yaml"


class Run:
    """A callable that runs `hgpo` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object, stdin: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # else main() sets it permanently
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *self._capsys.readouterr()

    def refusal(self, *arguments: object) -> str:
        """Run `hgpo`, which must exit with code 2 and print one line of error; return that line."""
        status, stdout, stderr = self(*arguments)
        assert (status, stdout) == (2, ""), stderr
        (line,) = stderr.splitlines()
        assert line.startswith("hgpo: ")
        return line


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and modification time of all files."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}


def run_hgpo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` and in this process, whose imports are already loaded."""
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    code: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as stdout,
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        patch.chdir(folder)
        patch.setenv("HOME", str(home))
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.setattr(sys, "argv", ["hgpo", *arguments])
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def hgpo_process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process: slower, but with what imports print."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hgpo_rllib.cli.main", *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(folder: Path, arguments: Sequence[str], named: Sequence[str]) -> None:
    """Check that the command exits with code 2, prints one line, and writes nothing."""
    assert_is_refusal(run_hgpo(folder, *arguments), named)
    assert list(folder.iterdir()) == []


def assert_is_refusal(done: subprocess.CompletedProcess[str], named: Sequence[str]) -> None:
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("hgpo: ")
    for part in named:
        assert part in line
    assert done.stdout == ""
