"""What is different in a Ray job (`ray job submit`): its folder is Ray's, and goes with it."""

from pathlib import Path

from hgpo_rllib.config import ConfigError, RunConfig
from hgpo_rllib.environments import find_environment

JOB_FOLDERS = "working_dir_files"
"""Ray unpacks the upload of a job in a folder of this one, on every node that runs some of it."""


def check_paths_are_kept(config: RunConfig, output: Path) -> None:
    """Raise ConfigError for results or data that would go into the folder of a job.

    Args:
        config: of the run, or of any trial of a sweep.
        output: where the run directory, or the sweep's, will be made.
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
