"""The commit that a run records."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.run.changes import git_commit


@pytest.mark.parametrize(
    ("git", "commit"),
    [("echo warning: slow >&2; echo 1f2e", "1f2e"), ("echo fatal: no repository; exit 128", None)],
)
def test_the_commit_is_what_git_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git: str, commit: str | None
) -> None:
    """Warnings of git are ignored; the commit is None if git fails or is not installed."""
    (tmp_path / "git").write_text(f"#!/bin/sh\n{git}\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() == commit
    (tmp_path / "git").unlink()
    assert git_commit() is None


def test_git_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **_: Any) -> str:
        assert timeout <= 10
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "check_output", hang)
    assert git_commit() is None
