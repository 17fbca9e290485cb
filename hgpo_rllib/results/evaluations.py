"""Load evaluations as data frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hgpo_rllib.jsonl import EVALUATED_EPISODES, ResultsError, Row
from hgpo_rllib.results.frames import (
    EVALUATED,
    EVALUATED_STEPS,
    episode_frames,
    read_episodes,
    read_object,
)

FORMAT = "hgpo-evaluation-1"
PROTOCOL, EPISODES, SUMMARY = "protocol.json", "episodes.jsonl", "summary.json"


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation by `hgpo evaluate`."""

    path: Path
    summary: Row
    """Content of summary.json."""
    episodes: pd.DataFrame
    """One row per episode."""
    steps: pd.DataFrame
    """One row per step of the episodes."""

    @property
    def protocol(self) -> Row:
        """The settings that the numbers depend on."""
        return self.summary["protocol"]


def load_evaluation(path: str | Path) -> Evaluation:
    """Load a finished evaluation.

    Raises:
        ResultsError: the directory has no evaluation, or an unfinished one.
    """
    path = Path(path)
    if not (path / SUMMARY).is_file():
        unfinished = (path / PROTOCOL).is_file()
        why = (
            "is not finished: call `hgpo evaluate` again" if unfinished else "is not an evaluation"
        )
        raise ResultsError(f"{path} {why} (it holds no {SUMMARY})")
    summary = read_object(path / SUMMARY)
    if summary.get("format") != FORMAT:
        raise ResultsError(f"{path / SUMMARY}: format {summary.get('format')!r} is not known")
    if not isinstance(summary.get("protocol"), dict):
        raise ResultsError(f"{path / SUMMARY}: it has no protocol")
    file = path / EPISODES
    episodes, steps = evaluated_frames(read_episodes(file, EVALUATED_EPISODES), file)
    return Evaluation(path, summary, episodes, steps)


def evaluated_frames(rows: Sequence[Row], source: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `Evaluation.episodes` and `Evaluation.steps` from the rows of episodes.jsonl."""
    return episode_frames(rows, ("seed", "place"), EVALUATED, EVALUATED_STEPS, source)
