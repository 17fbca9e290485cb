"""Translations of PDDL problems, kept on disk.

Translating a kitchen takes most of the time of loading it, and gives the same result every time.
What is stored is SAS text, never a Python object: the task is parsed anew, in milliseconds, so that
nothing in a file is ever executed. An entry is named by the hash of all that it depends on.
"""

import contextlib
import gzip
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

from env_wrappers.files import write_atomically

SETTING = "HGPO_ALFWORLD_CACHE"
"""Environment variable: another directory for the translations, or "0" to keep none."""

_FORMAT = 1
_OTHERS_CAN_WRITE = 0o022
_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)


def translate(domain: str, problem: str) -> tuple[Any, str]:
    """Return the parsed task and its SAS text, as ``fast_downward.pddl2sas`` does.

    What cannot be read back, for whatever reason, is translated again; where nothing can be
    written, nothing is kept. Raises what the translator raises.
    """
    folder = cache_directory()
    if folder is None:
        return _translate(domain, problem)
    entry = folder / f"{_key(domain, problem)}.sas.gz"
    sas = _read(entry)
    if sas is not None:
        return _parse(domain, problem), sas
    task, sas = _translate(domain, problem)
    _write(entry, sas)
    return task, sas


def cache_directory() -> Path | None:
    """Return the directory of the translations, made if need be; None: none is to be used.

    That is ``HGPO_ALFWORLD_CACHE`` or, without it, ``hgpo-rllib/alfworld`` in the user's cache. A
    directory that others can write to is not used: what is in it goes to a parser written in C.
    """
    setting = os.environ.get(SETTING, "")
    if setting == "0":
        return None
    try:
        folder = Path(setting).expanduser() if setting else _user_cache() / "hgpo-rllib/alfworld"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & _OTHERS_CAN_WRITE:
            raise PermissionError(f"{folder} is not this user's alone")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        warnings.warn(
            f"translations of ALFWorld games are not kept: {error}; "
            f"set {SETTING} to a directory, or to 0",
            stacklevel=2,
        )
        return None
    return folder


def _user_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else Path.home() / ".cache"


def _key(domain: str, problem: str) -> str:
    fast_downward_version = metadata.version("fast-downward-textworld")
    parts = [_FORMAT, textworld.__version__, fast_downward_version, domain, problem]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _checksum(entry: Path, sas: str) -> str:
    """Return a hash of the text and the name of its file: a renamed entry is not valid either."""
    return hashlib.sha256(f"{entry.name}\n{sas}".encode()).hexdigest()


def _read(entry: Path) -> str | None:
    """Return the SAS text of an entry; None: it is not there, or not what was written."""
    try:
        text = gzip.decompress(entry.read_bytes()).decode()
    except _UNREADABLE:
        return None
    checksum, _, sas = text.partition("\n")
    return sas if checksum == _checksum(entry, sas) else None


def _write(entry: Path, sas: str) -> None:
    """Put an entry in place at once: other processes see all of it, or nothing."""
    data = gzip.compress(f"{_checksum(entry, sas)}\n{sas}".encode(), compresslevel=6, mtime=0)
    with contextlib.suppress(OSError):
        write_atomically(entry, data)


def _translate(domain: str, problem: str) -> tuple[Any, str]:
    with _translator_arguments():
        task, sas = fast_downward.pddl2sas(domain, problem)
    return task, sas


def _parse(domain: str, problem: str) -> Any:
    """Return the task as ``pddl2sas`` does: by its own functions, without the translation."""
    with _translator_arguments(), contextlib.redirect_stdout(io.StringIO()):
        from fast_downward.translate import normalize
        from fast_downward.translate.pddl_parser import lisp_parser, parsing_functions

        texts = [lisp_parser.parse_nested_list(text.split("\n")) for text in (domain, problem)]
        task = parsing_functions.parse_task(*texts)
        normalize.normalize(task)
    return task


@contextlib.contextmanager
def _translator_arguments() -> Iterator[None]:
    """Stand in for a command line: the translator parses ``sys.argv`` when it is imported."""
    argv = sys.argv
    sys.argv = ["translate.py", "domain", "task"]
    try:
        yield
    finally:
        sys.argv = argv
