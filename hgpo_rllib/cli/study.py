"""`hgpo study`: compare arms over seeds, from a committed file to a page of results."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hgpo_rllib.cli.common import writing

app = typer.Typer(help="Compare arms over seeds, as a study file says.", no_args_is_help=True)
NAME = "study file, or the name of one in tuned_examples/studies/"
DOCS = Path("docs")
Docs = Annotated[
    Path, typer.Option("--docs", metavar="DIR", help="folder of results.md and results/")
]


@app.command()
def run(
    study: Annotated[str, typer.Argument(help=NAME)],
    resume: Annotated[bool, typer.Option("--resume", help="continue an interrupted study")] = False,
    docs: Docs = DOCS,
) -> None:
    """Train every arm with every seed, and record each trial when it has finished."""
    from hgpo_rllib.cli.sweep import check_trials
    from hgpo_rllib.studies.analysis import describe_power
    from hgpo_rllib.studies.settings import find_study, load_study

    path = find_study(study)
    settings = load_study(path)
    from hgpo_rllib.run.job import check_paths_are_kept
    from hgpo_rllib.studies.records import load_records
    from hgpo_rllib.studies.run import is_committed, plan, run_study, study_folder

    folder = study_folder(path.stem, settings)
    records = load_records(path.stem, settings, docs)
    sweep = plan(path.stem, settings, folder, records, resume)
    check_trials(sweep)
    if sweep.trials:
        check_paths_are_kept(sweep.trials[0].config, output=folder, docs=docs)
    typer.echo(f"study {path.stem}: {len(records)} of {settings.size} trials are recorded")
    typer.echo(describe_power(settings, records))
    if not is_committed(path):
        typer.echo(f"note: {path} is not committed; commit a study before its first trial")
    options = [] if docs == DOCS else ["--docs", str(docs)]
    command = shlex.join(["hgpo", "study", "run", study, *options, "--resume"])
    if not run_study(path.stem, command, sweep, folder, docs):
        raise typer.Exit(1)


@app.command()
def power(study: Annotated[str, typer.Argument(help=NAME)], docs: Docs = DOCS) -> None:
    """Print how many seeds are needed to see a difference."""
    from hgpo_rllib.studies.analysis import describe_power
    from hgpo_rllib.studies.records import load_records
    from hgpo_rllib.studies.settings import find_study, load_study

    path = find_study(study)
    settings = load_study(path)
    typer.echo(describe_power(settings, load_records(path.stem, settings, docs)))


@app.command()
def report(
    study: Annotated[
        str | None, typer.Argument(help="draw the figures of this study only; default: of all")
    ] = None,
    studies: Annotated[
        Path | None, typer.Option(help="folder of study files (default: tuned_examples/studies/)")
    ] = None,
    docs: Docs = DOCS,
) -> None:
    """Write DIR/results.md and the figures of the studies from the recorded trials."""
    from hgpo_rllib.studies.report import write_report

    name = Path(study).stem if study is not None and study.endswith(".yaml") else study
    with writing(docs):
        for path in write_report(docs, studies, name):
            typer.echo(path)
