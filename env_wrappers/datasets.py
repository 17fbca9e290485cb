"""Directories of generated data: written whole or not at all, and known again by their manifest."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from env_wrappers.errors import DataError
from env_wrappers.files import read_json

MANIFEST = "manifest.json"


def is_generated(out: Path, version: int, spec: Mapping[str, Any]) -> bool:
    """Return whether `out` holds the data of this very spec; False where nothing is there.

    Args:
        out: the directory that data may be in.
        version: of the generator.
        spec: what to generate, as JSON gives it back.

    Raises:
        DataError: it holds something else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        manifest = read_json(out / MANIFEST)
        found = manifest["generator_version"], manifest["spec"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{out} exists and is no generated data set: remove it or choose another directory"
        ) from error
    if found != (version, spec):
        raise DataError(
            f"{out} holds data of another spec (see its {MANIFEST}): "
            "remove it or choose another directory"
        )
    return True


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Give a scratch directory beside `out`, which becomes `out` if the block ends well."""
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
