"""Helpers of tests that start runs and read their files."""

import gzip
import json
from pathlib import Path

from ray._private.utils import get_num_cpus

ONE_AT_A_TIME = f"policy_server.replica_cpus={int(get_num_cpus()) // 2}"
"""Lets a sweep run one trial at a time on any machine."""


def rows(file: Path) -> list[dict]:
    """Return the lines of a JSON Lines file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def episodes_of(run: Path, iteration: int) -> list[dict]:
    """Return the recorded episodes of an iteration."""
    with gzip.open(run / "episodes" / f"iteration_{iteration:04d}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def run_of(folder: Path) -> Path:
    """Return the directory of the only run in a folder."""
    (run,) = folder.glob("alfworld_pocket-*")
    return run
