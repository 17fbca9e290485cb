"""Where a command may write in a job of `ray job submit`."""

from pathlib import Path

from hgpo_rllib.config import RunConfig
from hgpo_rllib.environments import find_environment
from hgpo_rllib.errors import ConfigError

JOB_FOLDERS = "working_dir_files"
"""Folder in which Ray unpacks the uploaded files of a job, on each node that the job uses."""


def check_is_kept(setting: str, path: Path) -> None:
    """Raise ConfigError if a relative path, given by `setting`, is in the folder of a job."""
    if JOB_FOLDERS in Path.cwd().parts and not path.is_absolute():
        raise ConfigError(
            f"{setting}: {path} is in the folder of this job, which Ray deletes: "
            "give an absolute path that is kept, see docs/jobs.md"
        )


def check_paths_are_kept(config: RunConfig, **folders: Path) -> None:
    """Raise ConfigError if results, in `folders`, or data would be written to a job's folder."""
    parts = find_environment(config.env.env_id).parts(config).values()
    generated = any(find_environment(p.env.env_id).data_generator(p) for p in parts)
    if generated or config.model.model_path is None:
        folders["cache"] = Path(config.cache)
    for setting, path in folders.items():
        check_is_kept(setting, path)
