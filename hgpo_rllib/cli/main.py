"""`hgpo`: exit code 0 on success, 2 for bad input (one line, no traceback), 130 after an interrupt,
1 otherwise.
"""

import contextlib
import errno
import gc
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from env_wrappers.errors import DataError
from hgpo_rllib.cli import bench, data, doctor, evaluate, play, sft, study, sweep
from hgpo_rllib.cli.common import RUN_FILE, Overrides, writing
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.reporting.console import log_events
from hgpo_rllib.run.directory import RunDirectory, describe_full_disk
from hgpo_rllib.run.interrupt import sigterm_as_interrupt
from hgpo_rllib.run.lock import locked

# Errors of a path that the user may not read or write, or that is too long. `Path.exists` raises
# some of them, too.
UNUSABLE_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)

app = typer.Typer(
    help="Train LLM agents on long-horizon tasks with HGPO.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(play.app, name="play")
app.add_typer(study.app, name="study")
app.command()(evaluate.evaluate)
app.command()(evaluate.compare)
app.command()(evaluate.serve)
app.command()(sft.sft)
app.command()(doctor.doctor)
app.command(cls=sweep.SweepCommand)(sweep.sweep)


@app.command()
def train(
    config: Annotated[Path | None, RUN_FILE] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="run directory to continue")] = None,
    dry_run: Annotated[
        bool, typer.Option(help="print settings, resources and memory, and stop")
    ] = False,
) -> None:
    """Train an agent and write its run directory."""
    if resume is not None:
        if config is not None:
            raise ConfigError("--resume uses the settings of RUN/config.yaml: remove CONFIG")
        settings = RunDirectory(resume).config_to_resume()
    elif config is None:
        raise ConfigError("specify a CONFIG (for example alfworld_pocket) or --resume RUN")
    else:
        settings = load_config(config, overrides or [])
    if dry_run:
        from hgpo_rllib.cli.dry_run import print_dry_run

        print_dry_run(settings)
        return
    # Lock the run before the imports below, which take seconds, to fail early if it is in use.
    with contextlib.nullcontext() if resume is None else locked(resume):
        from hgpo_rllib.run.inputs import check_inputs
        from hgpo_rllib.run.job import check_paths_are_kept

        check_paths_are_kept(settings, output=resume or Path(settings.output))
        check_inputs(settings)

        from hgpo_rllib.run.trainer import train as run_training

        run_training(settings, resume)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run directories, or a folder that contains run directories"),
    ],
    output: Annotated[
        Path | None, typer.Option(help="HTML file to write (default for one RUN: its report.html)")
    ] = None,
) -> None:
    """Write plots and an HTML report of one run, of several seeds, or of several settings."""
    from hgpo_rllib.reporting.report import write_report

    with writing(output or runs[0]):
        typer.echo(write_report(runs, output))


def main() -> None:
    """Entry point of the console script."""
    # Torch's idle threads would otherwise spin, and an update would take several times as long
    # when vLLM or other programs use the same cores. Torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imports of Ray, torch and vLLM create millions of objects that stay. By default, the garbage
    # collector looks through them again and again, a sixth of the time of the imports.
    gc.set_threshold(100_000)
    try:
        with log_events(), sigterm_as_interrupt():
            app()
    except (ConfigError, DataError) as error:
        print(f"hgpo: {error}", file=sys.stderr)
        sys.exit(2)
    except RunStoppedError as error:
        print(f"hgpo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNUSABLE_PATH and error.filename:
            print(f"hgpo: {error.filename}: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        if (full := describe_full_disk(error)) is None:
            raise
        print(f"hgpo: {full}: free some space, then repeat the command", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
