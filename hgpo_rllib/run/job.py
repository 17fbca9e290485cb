"""Check paths in a Ray job (`ray job submit`), whose working directory Ray deletes."""

from pathlib import Path

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.environments import find_environment

JOB_FOLDERS = "working_dir_files"
"""Folder in which Ray unpacks the uploaded files of a job, on each node that the job uses."""


def check_paths_are_kept(config: RunConfig, output: Path) -> None:
    """Raise ConfigError if results or data would be written to the folder of a job.

    Args:
        config: settings of the run, or of any trial of a sweep.
        output: folder of the run directory, or the sweep directory.
    """
    if JOB_FOLDERS not in Path.cwd().parts:
        return
    folders = {"output": output}
    generator = find_environment(config.env.env_id).generator
    made = config.env.data is None and generator is not None
    if made or config.model.model_path is None:
        folders["cache"] = Path(config.cache)
    for setting, path in folders.items():
        if not path.is_absolute():
            raise ConfigError(
                f"{setting}: {path} is in the folder of this job, which Ray deletes: "
                "give an absolute path that is kept, see docs/jobs.md"
            )
