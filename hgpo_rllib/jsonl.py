"""Write JSON Lines files, and read them, also while another process writes to them."""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from env_wrappers.files import write_atomically
from hgpo_rllib.errors import ConfigError

Row = dict[str, Any]

ALL = "all"
"""Name under which the episodes of all evaluated splits are combined."""
RUN_EPISODES, EVALUATED_EPISODES = "hgpo-episode-1", "hgpo-evaluated-episode-1"
"""Format names of episode lines."""


class ResultsError(ConfigError):
    """A file or directory cannot be read as results; the message says why."""


def read_jsonl(file: Path) -> Iterator[Row]:
    """Yield the objects of a JSON Lines file, plain or gzip; nothing if the file does not exist.

    Skips a last line that does not parse: its writer has not finished it or was killed. Also
    ignores the missing end of a truncated compressed file.

    Raises:
        ResultsError: the file cannot be read, or another line is not an object.
    """
    if not file.is_file():
        return
    bad: int | None = None
    try:
        for number, line in enumerate(_lines(file), start=1):
            if not line.strip():
                continue
            if bad is not None:
                raise ResultsError(f"{file}: line {bad} is not a JSON object")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield row
            else:
                bad = number
    except gzip.BadGzipFile as error:
        raise ResultsError(f"{file}: not a gzip file") from error
    except (OSError, zlib.error) as error:
        raise ResultsError(f"{file}: cannot be read ({error})") from error


def write_jsonl(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the lines of a JSON Lines file, compressed if its name ends in .gz."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write_atomically(file, gzip.compress(content, 3) if file.suffix == ".gz" else content)


def append_jsonl(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append all lines, or none if the disk is full; a crash of the machine does not lose them."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with file.open("ab", buffering=0) as stream:  # a buffer would be written again at the end
        end = stream.tell()
        try:
            while content:  # a full disk takes a part before it raises the error
                content = content[stream.write(content) :]
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(end)
            raise


def _lines(file: Path) -> Iterator[str]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", errors="replace") as stream:
        try:
            yield from stream
        except EOFError:  # a compressed file that is being written
            return
