"""Load sweeps as data frames."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from hgpo_rllib.jsonl import ALL, ResultsError
from hgpo_rllib.results.frames import read_object
from hgpo_rllib.results.runs import CONFIG, Run, Runs, load_run, make_labels

SWEEP = "sweep.json"


class Sweep(Runs):
    """The started trials of a sweep; frames have an additional column per swept setting."""

    def __init__(self, members: Sequence[Run], labels: pd.DataFrame, keys: list[str]) -> None:
        """Initialize; `keys` are the swept settings in grid order."""
        super().__init__(members, labels)
        self.keys = keys

    @property
    def trials(self) -> pd.DataFrame:
        """One row per finished trial, with the columns of `changes`, for all splits pooled."""
        finished = self.runs["run"][self.runs["finished"]]
        rows = self.changes[self.changes["split"].eq(ALL) & self.changes["run"].isin(finished)]
        return rows.drop(columns="split").reset_index(drop=True)


def load_sweep(path: str | Path, iterations: Iterable[int] | None = None) -> Sweep:
    """Load the started trials of a sweep.

    Args:
        path: directory of the sweep.
        iterations: see `load_run`.

    Raises:
        ResultsError: there is no sweep; see also `load_run`.
    """
    path = Path(path)
    if not (path / SWEEP).is_file():
        raise ResultsError(f"{path}: not a sweep directory (no {SWEEP} in it)")
    content = read_object(path / SWEEP)
    wanted = None if iterations is None else set(iterations)
    try:
        keys = [axis["key"] for axis in content["axes"]]
        begun = [t for t in content["trials"] if (path / t["name"] / CONFIG).is_file()]
        points = [[trial["point"][key] for key in keys] for trial in begun]
    except (KeyError, TypeError) as error:
        raise ResultsError(f"{path / SWEEP}: not the grid of a sweep ({error!r})") from error
    if not begun:
        raise ResultsError(f"{path}: none of its {len(content['trials'])} trials has begun yet")
    members = [load_run(path / trial["name"], wanted) for trial in begun]
    labels = make_labels(members)
    for place, (key, values) in enumerate(zip(keys, zip(*points, strict=True), strict=True)):
        # dtype=object keeps the values of the grid: otherwise 1 beside 0.5 would become 1.0.
        labels.insert(2 + place, key, pd.Series(values, dtype=object))
    return Sweep(members, labels, keys)
