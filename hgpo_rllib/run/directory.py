"""The run directory and the files in it."""

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hgpo_rllib.config import RunConfig, load_config, save_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.jsonl import read_jsonl, write_jsonl
from hgpo_rllib.run.checkpoint_files import previous, write_folder
from hgpo_rllib.run.lock import locked

_EPISODES = "iteration_{}.jsonl.gz"


class RunDirectory:
    """Paths and writers of a run. JSON lines are appended; other files are replaced atomically."""

    def __init__(self, path: Path):
        """Use the directory `path`; `create` makes that of a new run."""
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.evaluations = path / "evaluation.jsonl"
        self.summary = path / "summary.json"
        self.started = path / "started.json"
        """Settings and data of the last start; see `hgpo_rllib.run.changes`."""
        self.checkpoint = path / "checkpoint"
        """The policy in HuggingFace format."""
        self.best = path / "best"
        """The policy with the highest evaluated success rate, in HuggingFace format."""
        self.state = path / "state"
        """RLlib's checkpoint to resume from, see `checkpoint_files.previous` for the one before."""

    @classmethod
    def create(cls, config: RunConfig) -> "RunDirectory":
        """Create the directory ``<output>/<name>-<time>``."""
        output, name = Path(config.output), f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        try:
            output.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = output / (name if number == 1 else f"{name}-{number}")
                with contextlib.suppress(FileExistsError):  # another run began in the same second
                    path.mkdir()
                    break
        except OSError as error:
            raise ConfigError(f"output: cannot make {output / name}: {error.strerror}") from error
        save_config(config, path / "config.yaml")
        return cls(path)

    def config_to_resume(self) -> RunConfig:
        """Return the settings of a run that can be resumed.

        Raises:
            ConfigError: it is not a run directory, or has no checkpoint yet.
        """
        path = self.path
        if not (path / "config.yaml").is_file():
            raise ConfigError(f"--resume: {path} is not a run directory (it holds no config.yaml)")
        if not self.has_state():
            raise ConfigError(f"--resume: {path} holds no checkpoint: none has been written yet")
        return load_config(path / "config.yaml", [])

    def has_state(self) -> bool:
        """Whether there is a checkpoint to resume from, intact or damaged."""
        return self.state.is_dir() or previous(self.state).is_dir()

    def is_finished(self) -> bool:
        """Whether the run has finished; the summary is its last file."""
        return self.summary.is_file()

    def truncate(self, last_iteration: int) -> None:
        """Remove what was written about iterations after `last_iteration`; a resume repeats them.

        A last line that was truncated when the run was killed is removed too, and so is the summary
        of a finished run, which is written again at its new end.

        Raises:
            ResultsError: another line is not JSON.
        """
        for file in (self.metrics, self.evaluations):
            if file.exists():
                rows = [row for row in read_jsonl(file) if row["iteration"] <= last_iteration]
                write_jsonl(file, rows)
        for file in (self.path / "episodes").glob(_EPISODES.format("*")):
            number = file.name.removeprefix("iteration_").partition(".")[0]
            if number.isdecimal() and int(number) > last_iteration:
                file.unlink()
        self.summary.unlink(missing_ok=True)

    def write_episodes(self, iteration: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the episodes of one iteration."""
        folder = self.path / "episodes"
        folder.mkdir(exist_ok=True)
        write_jsonl(folder / _EPISODES.format(f"{iteration:04d}"), records)

    def keep_best(self) -> None:
        """Copy the policy of `checkpoint` to `best`."""
        write_folder(
            self.best,
            lambda path: shutil.copytree(self.checkpoint, path, copy_function=_link_or_copy),
        )


DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota or file size limit


def _link_or_copy(source: str, target: str) -> None:
    """Link a file, or copy it. Links are safe as checkpoint files are replaced, never modified."""
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)


def remove_partial(run: Path) -> None:
    """Remove partial files of a killed process, unless another process is writing to `run`."""
    with contextlib.suppress(ConfigError), locked(run):
        for path in run.rglob("*.partial"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def describe_full_disk(error: BaseException | None) -> str | None:
    """Return the problem if an error, or one of its causes, reports a full disk; else None.

    Libraries raise their own error types; that of safetensors carries the system's text only.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            problem = os.strerror(error.errno)  # libraries may change `strerror`
            return f"{problem} ({error.filename})" if error.filename else problem
        if os.strerror(errno.ENOSPC) in str(error):
            return os.strerror(errno.ENOSPC)
        error = error.__cause__ or error.__context__
    return None
