"""Environments differ only through their specs: no other module mentions their names."""

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
    """Yield the strings of a module that are the id or the short name of an environment."""
    names = {*SPECS, *short_names()}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and node.value in names:
            yield f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"


def test_no_other_module_names_an_environment() -> None:
    """Differences between environments belong in `EnvironmentSpec`."""
    own = ROOT / "environments"
    files = [file for file in ROOT.rglob("*.py") if not file.is_relative_to(own)]
    files = [file for file in files if str(file.relative_to(ROOT)) not in MAY_NAME_THEM]
    assert [line for file in files for line in named(file)] == []


def test_the_exceptions_are_needed() -> None:
    """Every file in `MAY_NAME_THEM` still names an environment."""
    assert [name for name in sorted(MAY_NAME_THEM) if not list(named(ROOT / name))] == []


@pytest.mark.parametrize("name", short_names())
def test_specs(name: str) -> None:
    """Each short name finds a spec with prompts for all agents and a generator of demonstrations.

    ScienceWorld is the exception: its package has the data, and only pretrained models play it.
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
    """It gets the general spec, whose short name can be the name of a directory."""
    spec = find_environment("Some Thing/My Env-v3")
    assert type(spec) is EnvironmentSpec
    assert spec.name == "my-env"
    assert find_environment("Two-Rooms").name == "two-rooms"  # a version is optional
    assert environment_id("my:Env-v0") == "my:Env-v0"
