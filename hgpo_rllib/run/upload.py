"""What `ray job submit --working-dir FOLDER` uploads: found with Ray's rules, before it does."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from ray._private.ray_constants import (
    RAY_RUNTIME_ENV_IGNORE_GITIGNORE,
    get_runtime_env_default_excludes,
)
from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

from hgpo_rllib.config import ConfigError

LIMIT = 50 * 2**20
"""Bytes above which an upload is refused: the code is far smaller, so it would hold data."""


@dataclass(frozen=True)
class Upload:
    """The files of a working directory that go to the cluster."""

    sizes: dict[Path, int]
    """Bytes of each file; paths are relative to the directory. Ray does not compress them."""

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())

    def largest(self, count: int) -> list[tuple[str, int]]:
        """The largest files and folders of the top level, and their bytes."""
        parts: dict[str, int] = {}
        for path, size in self.sizes.items():
            name = path.parts[0] + ("/" if len(path.parts) > 1 else "")
            parts[name] = parts.get(name, 0) + size
        return sorted(parts.items(), key=lambda part: -part[1])[:count]


def find_upload(folder: Path) -> Upload:
    """What Ray would upload of `folder`, by .gitignore, .rayignore and its own exclusions.

    Raises:
        ConfigError: it is no directory.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory")
    folder = folder.absolute()
    sizes: dict[Path, int] = {}

    def add(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder)] = path.stat().st_size

    quiet = logging.getLogger(__name__)
    quiet.setLevel(logging.ERROR)  # Ray tells of every ignore file that it reads
    _dir_travel(
        folder,
        [_get_excludes(folder, get_runtime_env_default_excludes())],
        add,
        include_gitignore=os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1",
        logger=quiet,
    )
    return Upload(sizes)


def check_upload(upload: Upload) -> None:
    """Raise ConfigError for an upload that is too large to be code alone."""
    if upload.total > LIMIT:
        name, size = upload.largest(1)[0]
        raise ConfigError(
            f"the upload has {mib(upload.total)}, more than {mib(LIMIT)}, {mib(size)} of it in "
            f"{name}: name what is no code in .rayignore"
        )


def mib(size: int) -> str:
    """Bytes as ``1.25 MiB``."""
    return f"{size / 2**20:.2f} MiB"
