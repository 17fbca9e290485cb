"""Environments are told apart by their specs: no other module mentions their names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hgpo_rllib
from hgpo_rllib.environments import (
    SPECS,
    EnvironmentSpec,
    environment_id,
    find_environment,
    short_names,
)

ROOT = Path(hgpo_rllib.__file__).parent
MAY_NAME_THEM = {
    "settings/env.py",  # the default of env.env_id
    "cli/data.py",  # names of sub-commands
    "cli/play.py",
}


def named(file: Path) -> Iterator[str]:
    """The strings of a module that are the id or the short name of an environment."""
    names = {*SPECS, *short_names()}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and node.value in names:
            yield f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"


def test_no_other_module_names_an_environment() -> None:
    """What differs between environments belongs into `EnvironmentSpec`."""
    own = ROOT / "environments"
    files = [file for file in ROOT.rglob("*.py") if not file.is_relative_to(own)]
    files = [file for file in files if str(file.relative_to(ROOT)) not in MAY_NAME_THEM]
    assert [line for file in files for line in named(file)] == []


def test_the_exceptions_are_needed() -> None:
    """A file that names none any more is to be removed from the list."""
    assert [name for name in sorted(MAY_NAME_THEM) if not list(named(ROOT / name))] == []


@pytest.mark.parametrize("name", short_names())
def test_specs(name: str) -> None:
    """An environment is found by its short name.

    All agents have prompts and it makes data, except for ScienceWorld: its package has the data,
    and only pretrained models play it.
    """
    spec = find_environment(environment_id(name))
    assert type(spec) is not EnvironmentSpec
    assert spec.name == name
    if name == "scienceworld":
        assert set(spec.prompts) == {"full"}
        return
    assert set(spec.prompts) == {"full", "react", "reflexion"}
    assert spec.require_generator().name.startswith(name)


def test_an_environment_without_a_spec() -> None:
    """Gets the general one; its name is short and can be the name of a directory."""
    spec = find_environment("Some Thing/My Env-v3")
    assert type(spec) is EnvironmentSpec
    assert spec.name == "my-env"
    assert find_environment("Two-Rooms").name == "two-rooms"  # a version is optional
    assert environment_id("my:Env-v0") == "my:Env-v0"
