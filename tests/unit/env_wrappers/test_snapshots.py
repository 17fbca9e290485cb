"""A snapshot of an episode continues in any environment with the same data and settings."""

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from env_wrappers.text_env import TextEnv
from tests.unit.env_wrappers.conftest import make_env
from tests.unit.env_wrappers.textcraft.textcraft_data import recipes, write_recipes
from tests.unit.env_wrappers.webshop.webshop_store import write_store

Make = Callable[..., TextEnv]
OTHERS = ("dance", "look", "inventory", "search[towel]", "search[<r>]", "search[odd]", "get 9 coal")
# Each number chooses an action of those offered, or one of `OTHERS`.
PLANS = st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=10)


@pytest.fixture(scope="module")
def make(name: str, folders: dict[str, Path]) -> Make:
    settings = {"data": folders[name]} | ({"reward": "score"} if name == "WebShop" else {})

    def make(**changes: Any) -> TextEnv:
        env = make_env(name, **settings | changes).unwrapped
        assert isinstance(env, TextEnv)
        return env

    return make


def play(env: TextEnv, info: dict[str, Any], plan: Sequence[tuple[bool, int]]) -> list[Any]:
    """Take the actions of a plan until the episode ends; return all results."""
    seen: list[Any] = []
    for offered, number in plan:
        actions = info["admissible_actions"] if offered else OTHERS
        seen.append(env.step(actions[number % len(actions)]))
        info = seen[-1][-1]
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


@given(st.integers(0, 5), PLANS, PLANS, PLANS)
def test_the_same_actions_give_the_same_results(
    make: Make, seed: int, before: list[Any], first: list[Any], second: list[Any]
) -> None:
    env, other = make(render_mode="ansi"), make(render_mode="ansi")
    other.reset(seed=seed + 1)
    observation, info = env.reset(seed=seed)
    taken = play(env, info, before)
    if taken and (taken[-1][2] or taken[-1][3]):
        with pytest.raises(ResetNeeded):
            env.snapshot()
        return
    if taken:
        observation, *_, info = taken[-1]
    snapshot = env.snapshot()
    continued = play(env, info, first)
    env.restore(snapshot)
    assert env.render() == observation
    assert copy.deepcopy(env).render() == observation
    branch = play(env, info, second)
    for each in (other, env, make(render_mode="ansi")):
        for plan, expected in ((second, branch), (first, continued)):
            each.restore(snapshot)
            assert each.render() == observation
            assert play(each, info, plan) == expected


def test_a_copy_of_a_restored_environment_continues_too(make: Make) -> None:
    env, other = make(), make()
    env.reset(seed=2)
    info = env.step("look")[-1]
    other.restore(env.snapshot())
    plan = [(True, number) for number in range(7)]
    copied = pickle.loads(pickle.dumps(other))
    assert play(copied, info, plan) == play(env, info, plan)


def test_a_snapshot_includes_the_number_of_steps(make: Make) -> None:
    env = make(max_steps=3)
    env.reset(seed=0)
    snapshot = env.snapshot()
    for _ in range(2):
        env.restore(snapshot)
        assert [env.step("dance")[3] for _ in range(3)] == [False, False, True]
    env.restore(snapshot)  # also after the end of an episode
    env.step("dance")
    assert env.step("dance")[-1]["inadmissible_count"] == 2


def test_only_a_running_episode_has_a_snapshot(make: Make) -> None:
    env = make(max_steps=1)
    with pytest.raises(ResetNeeded, match="no episode is running"):
        env.snapshot()
    env.reset(seed=0)
    snapshot = env.snapshot()
    env.step("dance")
    with pytest.raises(ResetNeeded, match="no episode is running"):
        env.snapshot()
    env.close()
    for call in (env.snapshot, lambda: env.restore(snapshot)):
        with pytest.raises(ClosedEnvironmentError):
            call()
    other = make(max_steps=1)
    other.restore(snapshot)
    assert other.step("dance")[3], "the closed environment does not matter"


@pytest.mark.parametrize("changes", [{"max_steps": 7}, {"success_reward": 1.0}])
def test_other_settings_are_refused(make: Make, changes: dict[str, Any]) -> None:
    env, other = make(), make(**changes)
    env.reset(seed=0)
    other.reset(seed=0)
    (name,) = changes
    with pytest.raises(DataError, match=f"restore: .* with another {name}: make both with"):
        other.restore(env.snapshot())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("WebShop", {"reward": "score"}),
        ("WebShop", {"observation_mode": "url"}),
        ("WebShop", {"show_attributes": True}),
        ("TextCraft", {"distractors": 3}),
    ],
)
def test_other_options_are_refused(
    folders: dict[str, Path], kind: str, changes: dict[str, Any]
) -> None:
    env, other = (
        make_env(kind, data=folders[kind], **options).unwrapped for options in ({}, changes)
    )
    env.reset(seed=0)
    (name,) = changes
    with pytest.raises(DataError, match=f"another {name}: make both"):
        other.restore(env.snapshot())  # type: ignore[attr-defined]


def test_other_data_or_trust_is_refused(make: Make, tmp_path: Path) -> None:
    env = make()
    env.reset(seed=0)
    match type(env).__name__:
        case "ALFWorldEnv":
            name, other = "trusted", make(trusted=True)
        case "WebShopEnv":
            name, other = "store", make(data=write_store(tmp_path / "store"))
        case _:
            without = {file: recipe for file, recipe in recipes().items() if file != "torch"}
            name, other = "data", make(data=write_recipes(tmp_path, without))
    with pytest.raises(DataError, match=f"another {name}"):
        other.restore(env.snapshot())


def test_a_snapshot_of_another_environment_is_refused(make: Make) -> None:
    class Other(type(make())):  # type: ignore[misc]
        pass

    env = make()
    env.reset(seed=0)
    snapshot = env.snapshot()
    env.__class__ = Other
    with pytest.raises(DataError, match="another environment"):
        env.restore(snapshot)
    with pytest.raises(DataError, match="give a snapshot, not dict"):
        env.restore({})  # type: ignore[arg-type]


def test_a_snapshot_stays_in_its_process(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="pickle the environment instead"):
        pickle.dumps(env.snapshot())
