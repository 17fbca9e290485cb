"""Fixtures of the text environments with small data."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import env_wrappers  # noqa: F401 (registers the environments)
from tests.unit.env_wrappers.textcraft.textcraft_data import write_recipes

Make = Callable[..., gymnasium.Env[str, str]]
OPTIONS: dict[str, dict[str, Any]] = {
    "ALFWorld": {},
    "WebShop": {"split": "test", "nouns": "words"},
    "TextCraft": {},
}


def make_env(name: str, **options: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make(f"hgpo/{name}-v0", **{"max_steps": 8} | OPTIONS[name] | options)


@pytest.fixture(scope="session")
def folders(
    generated_games: Path, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the data of each environment."""
    recipes = write_recipes(tmp_path_factory.mktemp("text_envs") / "recipes")
    return {"ALFWorld": generated_games, "WebShop": store, "TextCraft": recipes}


@pytest.fixture(scope="module", params=OPTIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def make(name: str, folders: dict[str, Path]) -> Make:
    return functools.partial(make_env, name, data=folders[name])
