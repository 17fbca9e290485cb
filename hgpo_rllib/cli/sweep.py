"""`hgpo sweep`: every combination of the values of some settings."""

from pathlib import Path
from typing import Annotated

import typer

from hgpo_rllib.config import ConfigError, Section
from hgpo_rllib.run.grid import Sweep, make_sweep, new_folder, open_sweep, parse_axis


def sweep(
    config: Annotated[Path | None, typer.Argument(help="run file, see tuned_examples/")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="section.key=value")
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE...", help="values of one setting; give it repeatedly"
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="runs at each point [default: 1]")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="directory of the sweep")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="continue the sweep of this directory")
    ] = None,
) -> None:
    """Train at every point of a grid, and compare held-out success in a table and a heat map."""
    if resume is not None:
        if config is not None or grid or seeds is not None or out is not None:
            raise ConfigError("--resume continues with the sweep's own settings: give nothing else")
        plan, folder = open_sweep(resume), resume
        check_trials(plan)
    elif config is None:
        raise ConfigError("give a CONFIG (tuned_examples/alfworld_pocket.yaml) or --resume SWEEP")
    else:
        axes = [parse_axis(text) for text in grid or []]
        plan = make_sweep(config, overrides or [], axes, seeds or 1)
        check_trials(plan)
        folder = new_folder(plan, out)
    from hgpo_rllib.run.job import check_paths_are_kept
    from hgpo_rllib.run.sweep import run_sweep

    check_paths_are_kept(plan.trials[0].config, folder)
    if not run_sweep(plan, folder):
        raise typer.Exit(1)


def check_trials(plan: Sweep) -> None:
    """Raise ConfigError or DataError for a trial whose settings or inputs are wrong."""
    from hgpo_rllib.run.inputs import check_inputs

    checked: list[tuple[Section, ...]] = []
    for trial in plan.trials:
        inputs = (trial.config.env, trial.config.model, trial.config.evaluation)
        if inputs not in checked:
            check_inputs(trial.config)
            checked.append(inputs)
