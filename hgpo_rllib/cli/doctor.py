"""`hgpo doctor`: check whether a run file will work on this machine."""

import sys
import tempfile
from pathlib import Path

import typer

from hgpo_rllib.cli.common import JsonOption, Overrides, RunFile, show
from hgpo_rllib.config import as_override, load_config
from hgpo_rllib.reporting.console import TrainingConsole

SMALL = (
    "games.train=6",
    "games.valid_seen=3",
    "games.valid_unseen=3",
    "store.products=400",  # enough that no split is empty
    "warm_start.games=12",
    "warm_start.demonstrations=1",
    "warm_start.optimizer_steps=20",
    "warm_start.exercise_steps=0",
)
"""Sizes of data and pocket model, if the run generates them."""


def doctor(
    config: RunFile = Path("alfworld_pocket"),
    overrides: Overrides = None,
    as_json: JsonOption = False,
) -> None:
    """Check whether CONFIG will work on this machine, and measure a short run.

    Checks software, GPUs, memory, disk, ports, model and data. Then starts the engine and the
    learner, updates the engine's weights, and takes a learner step. The exit code is 1 if there is
    a problem.
    """
    with tempfile.TemporaryDirectory() as cache:
        settings = load_config(config, [*SMALL, *(overrides or []), as_override("cache", cache)])
        from hgpo_rllib.doctor import examine

        checks = list(examine(settings, TrainingConsole(sys.stderr)))
    rows = [
        {"check": c.name, "state": "problem" if c.problem else "ok", "found": c.found}
        for c in checks
    ]
    problems = [{"check": c.name, "problem": c.problem} for c in checks if c.problem]
    show({"checks": rows, "problems": problems} if problems else {"checks": rows}, as_json)
    if problems:
        raise typer.Exit(1)
