"""The trials of a sweep: all combinations of the values of some settings, with several seeds."""

import itertools
import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from env_wrappers.files import validate_json, write_json
from hgpo_rllib.config import RunConfig, as_override, load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.lock import LOCK
from hgpo_rllib.run_files import parse_yaml
from hgpo_rllib.section import Name

SWEEP_FILE = "sweep.json"
NAME_LENGTH = 120  # maximum of a trial's directory name; file systems allow 255
ASHA = "asha"


@dataclass(frozen=True)
class Axis:
    """One swept setting: its dotted key and its values, in the given order."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a grid point with one seed."""

    name: Name
    """Name of the run directory in the sweep directory."""
    point: dict[str, Any]
    """Value of every swept key."""
    config: RunConfig
    """All settings of the run, including its seed."""


def parse_axis(text: str) -> Axis:
    """Parse ``section.key=value,value`` (YAML values; lists are in brackets).

    Raises:
        ConfigError: it has no key, no values, or a duplicate value.
    """
    key, equals, listed = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--grid {text!r}: write section.key=value,value")
    if key == "seed":
        raise ConfigError("--grid seed: give --seeds N, for N seeds from the config's seed on")
    try:
        values = parse_yaml(f"[{listed}]")
    except ValueError as error:
        raise ConfigError(f"--grid {key}: {listed!r} are not YAML values") from error
    if not values:
        raise ConfigError(f"--grid {key}: name at least one value")
    try:
        distinct = {json.dumps(value) for value in values}
    except TypeError as error:
        raise ConfigError(f"--grid {key}: {listed!r} are not plain values") from error
    if len(distinct) < len(values):
        raise ConfigError(f"--grid {key}: duplicate value ({listed})")
    return Axis(key, tuple(values))


@dataclass(frozen=True)
class Sweep:
    """Named trials: those of a grid, ordered by point, or of a study, with its arms as points."""

    axes: tuple[Axis, ...]
    trials: Annotated[tuple[Trial, ...], Field(min_length=1)]
    scheduler: str | None = None
    """`ASHA`: stop worse trials early; None: run all trials to completion."""
    command: str | None = None
    """Command that continues the sweep. None: `hgpo sweep --resume` with its directory."""

    def how_to_continue(self, folder: Path) -> str:
        """Return how to continue the sweep in `folder`, as "continue with: COMMAND"."""
        command = self.command or f"hgpo sweep --resume {shlex.quote(str(folder))}"
        return f"continue with: {command}"

    def save(self, folder: Path) -> None:
        """Write sweep.json with all settings of all trials, for `open_sweep`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SWEEP_FILE, TypeAdapter(Sweep).dump_python(self))

    def __str__(self) -> str:
        sizes = [len(axis.values) for axis in self.axes]
        seeds = len({trial.config.seed for trial in self.trials})
        return (
            f"{' x '.join(map(str, sizes))} points, {seeds} seed{'s' * (seeds > 1)}: "
            f"{len(self.trials)} trials"
        )


def make_sweep(
    run_file: Path,
    overrides: Sequence[str],
    axes: Sequence[Axis],
    seeds: int,
    scheduler: str | None = None,
) -> Sweep:
    """Create the trials of all grid points, each with `seeds` seeds from the run file's seed on.

    Raises:
        ConfigError: there is no axis, a key is on two axes, a point is not a valid config, or the
            scheduler is unknown or has no evaluations to compare.
    """
    if scheduler not in (None, ASHA):
        raise ConfigError(f"--scheduler {scheduler}: available: {ASHA}")
    keys = [axis.key for axis in axes]
    if not keys:
        raise ConfigError("--grid is missing: --grid section.key=value,value")
    if doubled := [key for key in keys if keys.count(key) > 1]:
        raise ConfigError(f"--grid {doubled[0]}: duplicate key")
    first_seed = load_config(run_file, list(overrides)).seed
    trials: list[Trial] = []
    for values in itertools.product(*(axis.values for axis in axes)):
        point = dict(zip(keys, values, strict=True))
        settings = [as_override(key, value) for key, value in point.items()]
        for seed in range(first_seed, first_seed + seeds):
            config = load_config(run_file, [*overrides, *settings, f"seed={seed}"])
            if scheduler and not 0 < config.evaluation.interval < config.iterations:
                raise ConfigError(
                    f"--scheduler {scheduler} compares trials by evaluations during training: set "
                    f"evaluation.interval to 1 or more and below iterations={config.iterations} "
                    f"(got {config.evaluation.interval})"
                )
            name = trial_name(len(trials) + 1, {**point, "seed": seed})
            trials.append(Trial(name, point, config))
    return Sweep(tuple(axes), tuple(trials), scheduler)


def open_sweep(folder: Path) -> Sweep:
    """Load a sweep that `Sweep.save` wrote.

    Raises:
        ConfigError: `folder` is not a sweep directory.
        DataError: its settings are not valid.
    """
    file = folder / SWEEP_FILE
    if not file.is_file():
        raise ConfigError(f"--resume: {folder} is not a sweep directory ({SWEEP_FILE})")
    return validate_json(TypeAdapter(Sweep), file.read_bytes(), f"--resume: {file}")


def new_folder(sweep: Sweep, output: Path | None) -> Path:
    """Return the directory of a new sweep: `output`, or a new name in the output folder of runs.

    Raises:
        ConfigError: `output` exists and is not an empty directory.
    """
    if output is None:
        config = sweep.trials[0].config
        stem = f"{config.name}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
        return Path(config.output) / stem
    if output.exists() and (not output.is_dir() or any(p.name != LOCK for p in output.iterdir())):
        raise ConfigError(f"--output: {output} exists; --resume {output} continues a sweep")
    return output


def trial_name(number: int, point: dict[str, Any]) -> str:
    """Return a directory name: the unique number of the trial, then its settings."""
    parts = [f"{number:02d}"]
    for key, value in point.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{key.rpartition('.')[2]}={text}")
    return re.sub(r"[^\w.,=+-]+", "_", "-".join(parts))[:NAME_LENGTH]
