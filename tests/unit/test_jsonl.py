"""Files of JSON lines."""

import resource
from pathlib import Path

import pytest

from hgpo_rllib.jsonl import append_jsonl


def test_lines_are_appended_together_or_not_at_all(tmp_path: Path) -> None:
    """A full disk leaves no part of an evaluation, which a resume would take for the whole."""
    file, rows = tmp_path / "evaluation.jsonl", [{"split": "x" * 700}] * 3
    append_jsonl(file, rows)
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_jsonl(file, rows)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
