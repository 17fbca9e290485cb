"""Gymnasium's vector environments return the same text as single environments, or raise."""

import random
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.unit.env_wrappers.conftest import OPTIONS

COUNT = 2
GAMES: dict[str, list[list[str]]] = {
    "ALFWorld": [],
    # A page with characters outside ASCII, and a search that the next pages repeat.
    "WebShop": [
        ["search[odd thing]", "search[ümlaut ☕ 毛巾]"],
        ["click[b0odd00001]", "click[next >]"],
    ],
    "TextCraft": [["get 1 oak logs", "get 1 毛巾"]],
}


@pytest.fixture
def settings(name: str, folders: dict[str, Path]) -> dict[str, Any]:
    return {"data": folders[name], "max_steps": 4} | OPTIONS[name]


def _play(env: gymnasium.vector.VectorEnv[Any, Any, Any], name: str) -> list[Any]:
    """Return all results of ten steps of a vector environment."""
    rng = random.Random(0)
    observations, infos = env.reset(seed=1)
    seen: list[Any] = [(observations, _plain(infos))]
    for step in range(10):
        if step < len(GAMES[name]):
            actions = GAMES[name][step]
        else:
            offered = [list(actions) or [""] for actions in infos["admissible_actions"]]
            actions = [rng.choice(actions) for actions in offered]
        observations, rewards, terminations, truncations, infos = env.step(actions)
        assert observations in env.observation_space
        seen.append((observations, *map(list, (rewards, terminations, truncations)), _plain(infos)))
    return seen


def _plain(infos: Any) -> Any:
    """Return infos with arrays converted to lists, for comparison."""
    if isinstance(infos, dict):
        return {key: _plain(value) for key, value in infos.items()}
    return [*map(_plain, infos)] if isinstance(infos, np.ndarray | list) else infos


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("ALFWorld", "fork"),
        ("ALFWorld", "spawn"),
        ("WebShop", "fork"),
        ("TextCraft", "fork"),
        pytest.param("WebShop", "spawn", marks=pytest.mark.slow),  # imports it all in each process
    ],
)
def test_processes_give_the_same_text(name: str, settings: dict[str, Any], context: str) -> None:
    sync = gymnasium.make_vec(f"hgpo/{name}-v0", COUNT, vectorization_mode="sync", **settings)
    there = gymnasium.make_vec(
        f"hgpo/{name}-v0",
        COUNT,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False, "context": context},
        **settings,
    )
    try:
        expected = _play(sync, name)
        assert _play(there, name) == expected
        if name == "WebShop":
            assert any("☕" in text for texts, *_ in expected for text in texts)
    finally:
        there.close()
        sync.close()


def test_shared_memory_is_refused_with_the_remedy(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="disable this feature with `shared_memory=False`"):
        gymnasium.make_vec(f"hgpo/{name}-v0", COUNT, vectorization_mode="async", **settings)


def test_a_group_is_reset_while_others_play_on(name: str, settings: dict[str, Any]) -> None:
    """A mask resets the members of a group with one seed while the other groups continue."""
    envs = gymnasium.make_vec(
        f"hgpo/{name}-v0",
        4,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED},
        **settings,
    )
    observations, infos = envs.reset(seed=[0, 0, 1, 1])
    assert observations[0] == observations[1]
    assert infos["game"][0] == infos["game"][1] != infos["game"][2]
    others = envs.step(["dance"] * 4)[0][2:]
    mask = np.array([True, True, False, False])
    observations, infos = envs.reset(seed=[2, 2, None, None], options={"reset_mask": mask})
    assert observations[2:] == others
    assert infos["_game"].tolist() == mask.tolist()
    *_, infos = envs.step(["dance"] * 4)
    taken = infos["inadmissible_count"].tolist()
    assert taken == [1, 1, 2, 2], "the others played on"
