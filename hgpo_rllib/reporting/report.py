"""Write a report on one run, several seeds or several settings as one HTML file."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from env_wrappers.files import write_atomically
from hgpo_rllib.agent.templates import template_environment
from hgpo_rllib.reporting import tables
from hgpo_rllib.reporting.episodes import pack_episodes
from hgpo_rllib.reporting.panels import Experiments
from hgpo_rllib.reporting.plots import pictures
from hgpo_rllib.reporting.style import color_of
from hgpo_rllib.results import ResultsError, load_runs

NAMES_IN_TITLE = 3
REPORT = "report.html"


def write_report(run_dirs: Sequence[Path], out: Path | None = None) -> Path:
    """Write a report on these runs; return its path.

    A directory that contains runs, such as a sweep's, is replaced by those that have recorded
    something. The file is `out`, or by default ``report.html`` in the directory if only one is
    given. Plots are written beside it, to ``plots/`` for ``report.html`` and otherwise to
    ``<name>_plots/``.

    Raises:
        ResultsError: there is nothing to report, or the output file is missing or invalid.
    """
    out = _output(run_dirs, out)
    runs = load_runs(run_dirs)
    for run in runs.members:
        if run.metrics.empty and run.evaluations.empty:
            raise ResultsError(f"{run.path}: nothing recorded yet (no metrics and no evaluation)")
    experiments = runs.experiments()
    drawn = pictures(experiments)
    folder = out.with_name("plots" if out.name == REPORT else f"{out.stem}_plots")
    folder.mkdir(parents=True, exist_ok=True)
    for name, png in drawn.items():
        write_atomically(folder / name, png)
    return write_atomically(out, _page(experiments, drawn))


def _output(run_dirs: Sequence[Path], out: Path | None) -> Path:
    if not run_dirs:
        raise ResultsError("no run directory given")
    if out is None and len(run_dirs) > 1:
        raise ResultsError("a report on several runs needs a file: give --output FILE.html")
    if out is not None and out.suffix != ".html":
        raise ResultsError(f"--output: {out} does not end with .html: the report is one such file")
    return out or run_dirs[0] / REPORT


def _page(experiments: Experiments, drawn: Mapping[str, bytes]) -> str:
    every = list(experiments.values())
    members = [run for runs in every for run in runs.members]
    alone = every[0] if len(every) == 1 else None
    single = members[0] if len(members) == 1 else None
    shown = {
        "task_types": tables.task_type_table(experiments),
        "phases": tables.phase_table(experiments),
    }
    if alone:
        shown["splits"] = tables.split_table(alone)
    else:
        shown["curves"] = tables.experiment_table(experiments)
        shown["differences"] = tables.difference_table(experiments)
    if not single:
        shown["runs"] = tables.run_table(experiments)
    colors = [] if alone else [color_of(index) for index in range(len(every))]
    names = list(dict.fromkeys(run.name for run in members))
    # Escape regardless of the file extension: model output must never be markup.
    environment = template_environment(Path(__file__).parent, autoescape=True)
    return environment.get_template("report.html.jinja").render(
        title=", ".join(names) if len(names) <= NAMES_IN_TITLE else f"{len(members)} runs",
        single=single,
        sizes=tables.size_of(single) if single else "",
        tables={name: table for name, table in shown.items() if len(table)},
        colors=colors,
        colors_of_runs=[
            color for color, runs in zip(colors, every, strict=False) for _ in runs.members
        ],
        images={name: base64.b64encode(png).decode() for name, png in drawn.items()},
        episodes=pack_episodes(experiments),
        notes=tables.notes(experiments),
        configs=[
            (name, (runs.members[0].path / "config.yaml").read_text(encoding="utf-8"))
            for name, runs in experiments.items()
        ],
    )
