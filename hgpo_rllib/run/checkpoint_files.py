"""Write checkpoint folders atomically and detect damage by checksums."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from env_wrappers.files import sync, sync_folder

MANIFEST = "manifest.json"  # size and CRC-32 of every other file; written last
_MANIFEST = TypeAdapter(Annotated[dict[str, tuple[int, int]], Field(min_length=1)])
CHUNK = 1 << 22


class DamagedFolderError(RuntimeError):
    """A folder differs from what was written."""


def previous(final: Path) -> Path:
    """Return the path of the previous version of `final`."""
    return final.with_name(f"{final.name}.previous")


def write_folder(final: Path, write: Callable[[Path], Any], keep_previous: bool = False) -> None:
    """Write a folder next to `final`, sync it to disk, and rename it to `final`.

    Whenever the process is killed, the new or the old version is intact: at `final`, or, between
    two renames, the old one at `previous(final)`, where `keep_previous` leaves it.
    """
    partial, old = final.with_name(f"{final.name}.partial"), previous(final)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        write(partial)
        _write_manifest(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # it may have filled the disk
        raise
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    partial.rename(final)
    sync(final.parent)
    if not keep_previous:
        shutil.rmtree(old, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Raise DamagedFolderError unless all files match the manifest."""
    try:
        manifest = _MANIFEST.validate_json((folder / MANIFEST).read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        raise DamagedFolderError(f"{folder} is damaged: {MANIFEST} cannot be read") from error
    for name, (size, value) in manifest.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size or checksum(path) != value:
            raise DamagedFolderError(f"{folder} is damaged: {name} is not what was written")


def newest_intact(final: Path) -> tuple[Path | None, list[str]]:
    """Move the newest intact version to `final`.

    Returns:
        `final`, or None if no version is intact; and the problems of the skipped versions.
    """
    problems = []
    for version in (final, previous(final)):
        if not version.is_dir():
            continue
        try:
            check_folder(version)
        except DamagedFolderError as error:
            problems.append(str(error))
            continue
        if version != final:
            shutil.rmtree(final, ignore_errors=True)
            version.rename(final)
        return final, problems
    return None, problems


def _write_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)  # may be a link to the manifest of a copied folder
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        str(path.relative_to(folder)): (path.stat().st_size, checksum(path)) for path in files
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    sync_folder(folder)


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value
