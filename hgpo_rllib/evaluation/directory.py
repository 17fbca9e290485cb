"""The directory of an evaluation: finished episodes, and a summary at the end."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from env_wrappers.files import write_atomically
from hgpo_rllib.config import ConfigError
from hgpo_rllib.evaluation.protocol import protocol_hash
from hgpo_rllib.evaluation.records import Record
from hgpo_rllib.jsonl import EVALUATED_EPISODES
from hgpo_rllib.results.evaluations import EPISODES, PROTOCOL, SUMMARY
from hgpo_rllib.results.frames import read_episodes, read_object


class EvaluationDirectory:
    """Append episodes line by line; write other files atomically."""

    def __init__(self, path: Path, protocol: Mapping[str, Any]):
        """Create the directory, or continue in one with the same protocol.

        Raises:
            ConfigError: it has other content, or cannot be written.
        """
        self.path = path
        self._episodes = path / EPISODES
        self._summary = path / SUMMARY
        found = path / PROTOCOL
        if found.is_file():
            _check_same(path, read_object(found), protocol)
        elif path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"--output: {path} is there and holds no evaluation: choose another")
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not found.is_file():
                write_atomically(found, json.dumps(protocol, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"--output: cannot write {path}: {error.strerror}") from error

    def records(self) -> list[Record]:
        """Return the finished episodes, without a line that was truncated by a kill."""
        return read_episodes(self._episodes, EVALUATED_EPISODES)

    def append(self, record: Record) -> None:
        """Append one line and sync it to disk."""
        with self._episodes.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def write_records(self, records: Sequence[Record]) -> None:
        """Replace all lines."""
        write_atomically(self._episodes, "".join(json.dumps(record) + "\n" for record in records))

    def summary(self) -> dict[str, Any] | None:
        """Return the summary, or None if the evaluation is not finished."""
        return read_object(self._summary) if self._summary.is_file() else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which marks the evaluation as finished."""
        write_atomically(self._summary, json.dumps(summary, indent=2) + "\n")


def _check_same(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    if protocol_hash(found) == protocol_hash(asked):
        return
    names = [name for name in {**found, **asked} if found.get(name) != asked.get(name)]
    raise ConfigError(
        f"--output: {path} holds an evaluation by another protocol (other: {', '.join(names)}): "
        "choose another directory, or none"
    )
