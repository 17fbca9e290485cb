"""Runs, sweeps and evaluations as pandas DataFrames.

    runs = load_runs(["runs/a", "runs/b"])
    runs.metrics.groupby("iteration")["success_rate"].agg(["mean", "sem"])

docs/dataframes.md lists the frames, their columns and units. A frame has all its columns with their
types even if nothing was recorded, so code for finished runs also works for unfinished ones.
"""

from hgpo_rllib.jsonl import ALL, ResultsError
from hgpo_rllib.results.evaluations import Evaluation, load_evaluation
from hgpo_rllib.results.runs import Run, Runs, load_run, load_runs
from hgpo_rllib.results.sweeps import Sweep, load_sweep

__all__ = [
    "ALL",
    "Evaluation",
    "ResultsError",
    "Run",
    "Runs",
    "Sweep",
    "load_evaluation",
    "load_run",
    "load_runs",
    "load_sweep",
]
