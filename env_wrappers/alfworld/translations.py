"""Disk cache of PDDL translations.

Translation takes most of the time of loading a kitchen, and is deterministic. The cache stores SAS
text and never Python objects: parsing it again takes milliseconds and executes nothing. An entry
is named by the hash of everything it depends on.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
import warnings
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import fast_downward
import textworld

from env_wrappers.files import user_cache, write_atomically

CACHE_VARIABLE = "HGPO_ALFWORLD_CACHE"
"""Environment variable: another cache directory, or "0" to disable the cache."""

_FORMAT = 4
_OTHERS_CAN_WRITE = 0o022


def translate(domain: str, problem: str) -> tuple[Any, str]:
    """Return the parsed task and its SAS text, as ``fast_downward.pddl2sas`` does.

    A corrupt entry is translated again; if the cache cannot be written, nothing is stored.
    Raises what the translator raises.
    """
    folder = cache_directory()
    entry = folder / f"{_key(domain, problem)}.sas.z" if folder else None
    with translator_arguments():
        if entry:
            with contextlib.suppress(OSError, zlib.error, UnicodeDecodeError):
                sas = zlib.decompress(entry.read_bytes()).decode()
                return _parse(domain, problem), sas
        task, sas = fast_downward.pddl2sas(domain, problem)
    if entry:
        with contextlib.suppress(OSError):
            write_atomically(entry, zlib.compress(sas.encode()))
    return task, sas


def cache_directory() -> Path | None:
    """Return the cache directory, created if necessary; None if the cache is disabled.

    The directory is ``HGPO_ALFWORLD_CACHE`` or ``hgpo-rllib/alfworld`` in the user's cache. A
    directory that others can write to is not used, since entries are parsed by C code.
    """
    setting = os.environ.get(CACHE_VARIABLE, "")
    if setting == "0":
        return None
    try:
        folder = Path(setting).expanduser() if setting else user_cache() / "hgpo-rllib/alfworld"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & _OTHERS_CAN_WRITE:
            raise PermissionError(f"{folder} is not this user's alone")
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        warnings.warn(
            f"translations of ALFWorld games are not kept: {error}; "
            f"set {CACHE_VARIABLE} to a directory, or to 0",
            stacklevel=2,
        )
        return None
    return folder


def _key(domain: str, problem: str) -> str:
    fast_downward_version = metadata.version("fast-downward-textworld")
    parts = [_FORMAT, textworld.__version__, fast_downward_version, domain, problem]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _parse(domain: str, problem: str) -> Any:
    """Return the task as ``pddl2sas`` does, using its functions but no translation."""
    with contextlib.redirect_stdout(io.StringIO()):
        from fast_downward.translate import normalize
        from fast_downward.translate.pddl_parser import lisp_parser, parsing_functions

        texts = [lisp_parser.parse_nested_list(text.split("\n")) for text in (domain, problem)]
        task = parsing_functions.parse_task(*texts)
        normalize.normalize(task)
    return task


@contextlib.contextmanager
def translator_arguments() -> Iterator[None]:
    """Set ``sys.argv`` for the translator, which parses it on import and overwrites it."""
    argv = sys.argv
    sys.argv = ["translate.py", "domain", "task"]
    try:
        yield
    finally:
        sys.argv = argv
