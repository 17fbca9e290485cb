"""Columns and types of all data frames, and their construction from rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from env_wrappers.files import read_json
from hgpo_rllib import metrics
from hgpo_rllib.jsonl import ResultsError, Row, read_jsonl

Columns = dict[str, str]


def _typed(dtype: str, names: str) -> Columns:
    return dict.fromkeys(names.split(), dtype)


METRICS = dict.fromkeys((name for name in metrics.METRICS if "{" not in name), "float64")
METRICS["iteration"] = "int64"
GROUP_SIZES = {"iteration": "int64", "depth": "int64", "size": "str", "share": "float64"}
EVALUATIONS = {"iteration": "int64", "split": "str"} | dict.fromkeys(
    metrics.EVALUATION_METRICS, "float64"
)
TASK_TYPES = {"iteration": "int64", "split": "str", "task_type": "str"} | _typed(
    "float64", "success_rate standard_error episodes"
)
TASKS = {"iteration": "int64", "split": "str", "task": "int64"} | _typed(
    "float64", "episodes successes"
)
_STEP = (
    _typed("int64", "time")
    | _typed("str", "anchor prompt completion action")
    | _typed("bool", "is_valid inadmissible")
    | _typed("float64", "reward response_tokens prompt_truncated response_truncated")
)
EPISODES = (
    _typed("int64", "iteration")
    | _typed("str", "split group member game task_type goal")
    | _typed("bool", "success")
    | _typed("float64", "episode_return episode_length")
)
STEPS = (
    {"iteration": "int64", "group": "str", "member": "str", "weight_version": "str"}
    | _STEP
    | _typed("float64", "step_return advantage request_s env_s")
    | _typed("object", "group_sizes response_ids behavior_logp weight_versions")
)
EVALUATED = (
    _typed("int64", "seed place")
    | _typed("str", "split game task_type goal")
    | _typed("bool", "success")
    | _typed("float64", "score episode_return episode_length trials prompt_tokens response_tokens")
    | _typed("object", "lost_trials")
)
EVALUATED_STEPS = _typed("int64", "seed place") | _STEP | _typed("float64", "prompt_tokens")


def read_object(file: Path) -> Row:
    """Return the JSON object of a file.

    Raises:
        ResultsError: the file cannot be read or has no JSON object.
    """
    try:
        value = read_json(file)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ResultsError(f"{file}: not a JSON object")
    return value


def read_episodes(file: Path, *formats: str) -> list[Row]:
    """Return the episodes of a file, which have one of these formats.

    Raises:
        ResultsError: an episode has another format, or no steps.
    """
    rows = list(read_jsonl(file))
    for row in rows:
        if (found := row.get("format")) not in formats:
            raise ResultsError(f"{file}: episode format {found!r} is not {' or '.join(formats)}")
        steps = row.get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ResultsError(f"{file}: an episode without a list of steps")
    return rows


def episode_frames(
    rows: Sequence[Row], keys: Sequence[str], columns: Columns, step_columns: Columns, source: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return frames of episodes and of their steps, which also have the columns `keys`.

    Raises:
        ResultsError: a value has another type than its column.
    """
    episodes, steps = [], []
    for row in rows:
        recorded = row["steps"]
        others = {name: value for name, value in row.items() if name not in ("format", "steps")}
        episodes.append(others | {"episode_length": len(recorded)})
        steps += [{key: row.get(key) for key in keys} | step for step in recorded]
    return make_frame(episodes, columns, source), make_frame(steps, step_columns, source)


def make_frame(rows: Sequence[Row], columns: Columns, source: Path) -> pd.DataFrame:
    """Return a frame of the rows with at least `columns`, in order; missing values are NaN.

    Raises:
        ResultsError: a key or flag is missing, or a value does not match its column's type.
    """
    frame = pd.DataFrame(list(rows))
    for name, dtype in columns.items() if rows else ():
        if dtype in ("int64", "bool") and (name not in frame or frame[name].isna().any()):
            raise ResultsError(f"{source}: a line without {name!r}: not a file of this kind")
    frame = frame.reindex(columns=list(dict.fromkeys([*columns, *frame])))
    for name, dtype in columns.items():
        try:
            frame[name] = frame[name].astype(dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ResultsError(f"{source}: {name!r} has a value that is not {dtype}") from error
        if dtype == "float64":
            frame[name] = frame[name].where(np.isfinite(frame[name]))
    return frame
