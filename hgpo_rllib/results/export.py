"""`hgpo data export`: the recorded steps of a run as one table."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd

from env_wrappers.datasets import new_file
from hgpo_rllib.jsonl import ResultsError
from hgpo_rllib.results.runs import Run, load_run

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
Format = Literal["sft", "hf"]
_KEYS = ["iteration", "group", "member"]
_TEXTS = {"sft": ("rendered_prompt", "response"), "hf": ("prompt", "completion")}


def export_steps(run: Path, out: Path, lost: bool = False, form: Format = "sft") -> int:
    """Write the steps of a run's training episodes; the suffix of `out` is the type of file.

    Columns: ``iteration``, ``group``, ``member``, ``time``, ``game``, ``task_type``, ``goal``,
    ``success`` (of the episode), the texts, ``response_truncated``, ``reward``, ``step_return`` and
    ``advantage``. The texts are the prompt, with the chat template, and the response. Their names
    are ``rendered_prompt`` and ``response``, as `hgpo sft` reads them, or ``prompt`` and
    ``completion``, as trl reads them.

    Args:
        run: run directory.
        out: file to write, ``.jsonl``, ``.jsonl.gz`` or ``.parquet``; replaced atomically.
        lost: whether to include the steps of lost episodes.
        form: the names of the texts: ``sft`` for `hgpo sft`, ``hf`` for trl.

    Returns:
        The number of steps.

    Raises:
        ResultsError: the suffix is another, there is no run, or no episode is left.
    """
    if not out.name.endswith(SUFFIXES):
        raise ResultsError(f"{out}: the name must end in {', '.join(SUFFIXES)}")
    recorded = load_run(run)
    # One iteration at a time: the columns that are not exported are large.
    parts = (
        _steps(replace(recorded, episode_files={iteration: file}), lost, form)
        for iteration, file in recorded.episode_files.items()
    )
    tables = [part for part in parts if len(part)]
    if not tables:
        raise ResultsError(f"{run}: no {'' if lost else 'won '}training episodes are recorded")
    table = pd.concat(tables)
    with new_file(out) as file:
        if out.suffix == ".parquet":
            table.to_parquet(file, index=False)
        else:
            lines = table.to_json(orient="records", lines=True, force_ascii=False).encode()
            # Without the time, equal runs give identical bytes.
            file.write(gzip.compress(lines, mtime=0) if out.suffix == ".gz" else lines)
    return len(table)


def _steps(run: Run, lost: bool, form: Format) -> pd.DataFrame:
    episodes = run.episodes[[*_KEYS, "game", "task_type", "goal", "success"]]
    prompt, response = _TEXTS[form]
    steps = run.steps.rename(columns={"prompt": prompt, "completion": response})
    wanted = ["time", prompt, response, "response_truncated", "reward", "step_return", "advantage"]
    table = steps[[*_KEYS, *wanted]].merge(episodes, on=_KEYS)
    return table if lost else table[table["success"]]
