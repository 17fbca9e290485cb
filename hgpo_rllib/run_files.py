"""Run files: YAML files, found by path or name, that can extend other run files."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from env_wrappers.errors import one_line
from hgpo_rllib.errors import ConfigError

EXAMPLES = Path(__file__).parents[1] / "tuned_examples"
"""Next to the package, both in a checkout and in an installed wheel."""


def find_run_file(path: Path) -> Path:
    """Return `path`, or the file in tuned_examples/ for a bare name such as ``alfworld_pocket``.

    Raises:
        ConfigError: there is no file for a bare name.
    """
    named = EXAMPLES / f"{path}.yaml"
    if path.is_file() or path.name != str(path) or path.suffix in (".yaml", ".yml"):
        return path
    if named.is_file():
        return named
    names = sorted(file.stem for file in EXAMPLES.glob("*.yaml"))
    close = get_close_matches(str(path), names, n=3) or names[:3]
    raise ConfigError(
        f"cannot read the config {path}: there is no such file, and no run file of that name comes "
        f"with this package (close: {', '.join(close)})"
    )


class _Loader(yaml.SafeLoader):
    """Loader that refuses a key that is given twice, of which PyYAML would keep the last."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        # When a mapping is constructed, the keys of `<<` are among its own, which override them.
        node, seen = super().compose_mapping_node(anchor), set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                message = f"{key.value} is given twice"
                raise yaml.composer.ComposerError(None, None, message, key.start_mark)
            seen.add(key.value)
        return node


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: it is not YAML, or a key is given twice; the message is one line.
    """
    try:
        return yaml.load(text, _Loader)
    # PyYAML has other errors for a date that does not exist, and for deeply nested lists.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(one_line(error)) from error


def read_run_file(path: Path) -> dict[str, Any]:
    """Return the settings of a file merged over those of the files that it extends.

    ``extends`` is relative to the folder of its file. Sections are merged key by key; other values
    are replaced.

    Raises:
        ConfigError: a file is missing or malformed, or files extend each other.
    """
    return _read(find_run_file(path), ())


def _read(path: Path, extended_by: tuple[Path, ...]) -> dict[str, Any]:
    chain = (*extended_by, path)
    if os.path.realpath(path) in map(os.path.realpath, extended_by):
        raise ConfigError(f"run files extend each other: {' -> '.join(map(str, chain))}")
    try:
        data = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        origin = f", which {extended_by[-1]} extends" if extended_by else ""
        raise ConfigError(f"cannot read the config {path}{origin}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold sections (`algorithm:`, `learner:`, …)")
    if "extends" not in data:
        return data
    base = data.pop("extends")
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends must name one run file (got {base!r})")
    return _merge(_read(path.parent / base, chain), data)


def _merge(base: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `data`: sections key by key, other values replaced."""
    merged = base | data
    for key in base.keys() & data.keys():
        if isinstance(base[key], dict) and isinstance(data[key], dict):
            merged[key] = _merge(base[key], data[key])
    return merged
