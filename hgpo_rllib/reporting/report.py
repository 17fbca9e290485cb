"""Write the report of one run, of several seeds, or of several settings, as one HTML file."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hgpo_rllib.reporting import tables
from hgpo_rllib.reporting.curves import Curve, curves_of
from hgpo_rllib.reporting.episodes import pack_episodes
from hgpo_rllib.reporting.plots import pictures
from hgpo_rllib.reporting.run_data import RunData, RunError, load_run

NAMES_IN_TITLE = 3
CONFIG, REPORT = "config.yaml", "report.html"


def write_report(run_dirs: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report on these runs; return its path.

    A directory that is no run but holds some, such as a sweep's, stands for all of them that have
    recorded something. The file is `out`, or ``report.html`` in the only directory that is given;
    pictures go beside it, into ``plots/`` for ``report.html`` and ``<name>_plots/`` otherwise.

    Raises:
        RunError: there is nothing to report on, or no place for it.
    """
    out = _output(run_dirs, out)
    runs = [run for path in run_dirs for run in _runs(path)]
    curves = curves_of(runs)
    drawn = pictures(curves)
    folder = out.with_name("plots" if out.name == REPORT else f"{out.stem}_plots")
    for name, png in drawn.items():
        _write_atomically(folder / name, png)
    return _write_atomically(out, _page(curves, drawn))


def _output(run_dirs: Sequence[Path], out: Path | None) -> Path:
    if not run_dirs:
        raise RunError("no run directory given")
    if out is None and len(run_dirs) > 1:
        raise RunError("a report on several runs needs a place: give --output FILE.html")
    if out is not None and out.suffix != ".html":
        raise RunError(f"--output: {out} does not end with .html: the report is one such file")
    return out or run_dirs[0] / REPORT


def _runs(path: Path) -> list[RunData]:
    """The run of a directory, or the runs in it."""
    inside = sorted(config.parent for config in path.glob(f"*/{CONFIG}"))
    if (path / CONFIG).is_file() or not inside:
        return [load_run(path)]
    runs = [load_run(run) for run in inside if _has_begun(run)]
    if not runs:
        raise RunError(f"{path}: none of its {len(inside)} runs has recorded anything yet")
    return runs


def _has_begun(run: Path) -> bool:
    files = (run / "metrics.jsonl", run / "evaluation.jsonl")
    return any(file.is_file() and file.stat().st_size > 0 for file in files)


def _page(curves: Sequence[Curve], drawn: Mapping[str, bytes]) -> bytes:
    runs = [run for curve in curves for run in curve.runs]
    alone = curves[0] if len(curves) == 1 else None
    names = list(dict.fromkeys(run.name for run in runs))
    single = runs[0] if len(runs) == 1 else None
    curve_names, differences = tables.difference_rows(curves)
    values: dict[str, Any] = {
        "title": ", ".join(names) if len(names) <= NAMES_IN_TITLE else f"{len(runs)} runs",
        "single": single,
        "sizes": tables.size_of(single) if single else "",
        "headline": tables.headline(alone) if alone else None,
        "curve_rows": tables.curve_rows(curves) if not alone else [],
        "run_rows": tables.run_rows(curves) if not single else [],
        "curve_names": curve_names,
        "differences": differences,
        "splits": tables.split_rows(alone) if alone else [],
        "families": tables.family_rows(alone) if alone else [],
        "phases": tables.phase_rows(alone.runs) if alone else [],
        "images": {name: base64.b64encode(png).decode() for name, png in drawn.items()},
        "episodes": pack_episodes(curves),
        "notes": tables.notes(curves),
        "facts": tables.facts(single) if single else [],
        "configs": [(curve.name, curve.runs[0].config_text) for curve in curves],
    }
    return _render("report.html.jinja", **values)


def _render(template: str, **values: object) -> bytes:
    # autoescape=True rather than by file extension: what models write must never be markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values).encode()


def _write_atomically(path: Path, data: bytes) -> Path:
    """A reader sees the old file or the whole new one, also while a run is being watched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.chmod(0o644)  # mkstemp's 0600 would keep a web server from showing it
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
