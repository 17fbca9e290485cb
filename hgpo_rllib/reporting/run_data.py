"""Read one run directory as the trainer leaves it, finished or still being written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

Row = dict[str, Any]

ALL = "all"
TRAIN = "train"
EPISODE_FORMAT = "hgpo-episode-1"


class RunError(ValueError):
    """A directory that cannot be read as a run; the message is one line for a person."""


@dataclass(frozen=True)
class EpisodeFile:
    """The episodes of one iteration."""

    path: Path
    iteration: int


@dataclass(frozen=True)
class RunData:
    """What one run recorded.

    `metrics` has one row per iteration and `evaluations` one per (iteration, split), both in
    order. `episode_files` are those of training (all, where there are none of training), oldest
    first. `summary` is None until the run has finished.
    """

    path: Path
    config: Row
    config_text: str
    metrics: list[Row]
    evaluations: list[Row]
    episode_files: list[EpisodeFile]
    summary: Row | None

    @property
    def name(self) -> str:
        """The configured name, or the directory's."""
        return str(self.config.get("name") or self.path.name)

    @property
    def seed(self) -> object:
        """The configured seed, None where the configuration has none."""
        return self.config.get("seed")

    @property
    def splits(self) -> list[str]:
        """The evaluated splits in the order they were recorded, without the pooled `all`."""
        return list(dict.fromkeys(r["split"] for r in self.evaluations if r["split"] != ALL))

    def evaluations_of(self, split: str) -> list[Row]:
        """The rows of one split, by iteration."""
        return [row for row in self.evaluations if row["split"] == split]

    def before(self, split: str = ALL) -> Row | None:
        """The evaluation of the warm start."""
        return next((r for r in self.evaluations_of(split) if r["iteration"] == 0), None)

    def after(self, split: str = ALL) -> Row | None:
        """The newest evaluation made after training began (the newest, not the best)."""
        rows = [row for row in self.evaluations_of(split) if row["iteration"] > 0]
        return rows[-1] if rows else None


def load_run(path: str | Path) -> RunData:
    """Read the run in the directory `path`; RunError where there is none."""
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path}: no such directory")
    if not (path / "config.yaml").is_file():
        raise RunError(f"{path}: not a run directory (no config.yaml in it)")
    metrics = _metrics(path / "metrics.jsonl")
    evaluations = _evaluations(path / "evaluation.jsonl")
    if not metrics and not evaluations:
        raise RunError(f"{path}: nothing recorded yet (no metrics and no evaluation)")
    config_text = (path / "config.yaml").read_text(encoding="utf-8")
    return RunData(
        path=path,
        config=_config(path / "config.yaml", config_text),
        config_text=config_text,
        metrics=metrics,
        evaluations=evaluations,
        episode_files=_episode_files(path / "episodes"),
        summary=_summary(path / "summary.json"),
    )


def _config(file: Path, text: str) -> Row:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RunError(f"{file}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict):
        raise RunError(f"{file}: not a mapping")
    return config


def _summary(file: Path) -> Row | None:
    if not file.is_file():
        return None
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{file}: not JSON ({error})") from error
    if not isinstance(summary, dict):
        raise RunError(f"{file}: not an object")
    return summary


def _metrics(file: Path) -> list[Row]:
    """Rows by iteration. A resumed run repeats iterations: what it wrote last is what counts."""
    by_iteration: dict[int, Row] = {}
    for row in read_jsonl(file):
        if isinstance(row.get("iteration"), int):
            by_iteration[row["iteration"]] = row
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def _evaluations(file: Path) -> list[Row]:
    by_key: dict[tuple[str, int], Row] = {}
    for row in read_jsonl(file):
        if isinstance(row.get("iteration"), int) and isinstance(row.get("split"), str):
            by_key[row["split"], row["iteration"]] = row
    # sorted() is stable, so the splits keep the order in which they were first recorded.
    return sorted(by_key.values(), key=lambda row: row["iteration"])


def _episode_files(folder: Path) -> list[EpisodeFile]:
    """Only the first line of every file is read to order them: there can be gigabytes."""
    found: list[tuple[str, EpisodeFile]] = []
    for file in sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")]):
        head = next(read_jsonl(file), None)
        if head is None:
            continue
        if head.get("format") != EPISODE_FORMAT:
            raise RunError(f"{file}: episode format {head.get('format')!r} is not known")
        found.append((str(head.get("split")), EpisodeFile(file, int(head.get("iteration") or 0))))
    training = [file for split, file in found if split == TRAIN] or [file for _, file in found]
    return sorted(training, key=lambda file: file.iteration)


def read_episodes(files: Sequence[EpisodeFile]) -> list[Row]:
    """The episodes of these files; one that was cut off while it was written has fewer."""
    return [row for file in files for row in read_jsonl(file.path)]


def _open(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", errors="replace")
    return file.open(encoding="utf-8", errors="replace")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The non-blank lines; a compressed file cut off while being written just ends there."""
    with _open(file) as stream:
        numbered = enumerate(stream, start=1)
        while True:
            try:
                index, line = next(numbered)
            except (StopIteration, EOFError):
                return
            except gzip.BadGzipFile as error:
                raise RunError(f"{file}: not a gzip file") from error
            if line.strip():
                yield index, line


def read_jsonl(file: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines.

    A last line that does not parse is one that a writer has not finished, and is left out;
    the same anywhere else means a damaged file.
    """
    if not file.is_file():
        return
    torn: int | None = None
    for index, line in _lines(file):
        if torn is not None:
            raise RunError(f"{file}: line {torn} is not a JSON object")
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row
        else:
            torn = index
