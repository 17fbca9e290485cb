"""`hgpo sweep`: train with every combination of the values of several settings."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hgpo_rllib.cli.common import RUN_FILE, Overrides
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.grid import Sweep, make_sweep, new_folder, open_sweep, parse_axis

GRID = "--grid"


class SweepCommand(TyperCommand):
    """Command whose option `--grid` accepts several settings, which click does not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command`."""
        return super().parse_args(ctx, list(repeat_grid(args)))


def repeat_grid(words: Sequence[str]) -> Iterator[str]:
    """Convert ``--grid a=1 b=2 --seeds 3`` to ``--grid a=1 --grid b=2 --seeds 3``."""
    option = ""
    for word in words:
        if word.startswith("-"):
            option = word
        if option == GRID:
            if word == GRID:
                continue
            yield GRID
        yield word


def sweep(
    config: Annotated[Path | None, RUN_FILE] = None,
    overrides: Overrides = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE...",
            help="swept settings and their values, up to the next option; write it after CONFIG "
            "and KEY=VALUE",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="number of seeds per point (default: 1)")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="asha: stop the worse trials early (default: none)")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="sweep directory to create")] = None,
    resume: Annotated[Path | None, typer.Option(help="sweep directory to continue")] = None,
) -> None:
    """Train at every point of a grid, and compare held-out success in a table and a heat map."""
    if resume is not None:
        if any((config, grid, seeds, scheduler, output)):
            raise ConfigError("--resume uses the settings of the sweep: remove all other arguments")
        plan, folder = open_sweep(resume), resume
    elif config is None:
        raise ConfigError("specify a CONFIG (for example alfworld_pocket) or --resume SWEEP")
    else:
        axes = [parse_axis(text) for text in grid or []]
        plan = make_sweep(config, overrides or [], axes, seeds or 1, scheduler)
        folder = new_folder(plan, output)
    check_trials(plan)
    from hgpo_rllib.run.job import check_paths_are_kept
    from hgpo_rllib.run.sweep import run_sweep

    check_paths_are_kept(plan.trials[0].config, output=folder)
    if not run_sweep(plan, folder):
        raise typer.Exit(1)


def check_trials(plan: Sweep) -> None:
    """Raise ConfigError or DataError if the inputs of a trial are invalid."""
    from hgpo_rllib.run.inputs import check_inputs

    if len(plan.trials) > 1 and any(t.config.rollout.gateway_port for t in plan.trials):
        raise ConfigError("rollout.gateway_port: trials would use the same port; train single runs")
    checked: list[tuple[object, ...]] = []
    for trial in plan.trials:
        run = trial.config  # of `learner` and `algorithm`, the checks read these two settings
        others = run.model_dump(exclude={"seed", "iterations", "learner", "algorithm"})
        inputs = run.algorithm.estimator, run.algorithm.anchor, others
        if inputs not in checked:
            check_inputs(run)
            checked.append(inputs)
