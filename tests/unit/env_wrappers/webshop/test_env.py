"""The Gymnasium environment of WebShop."""

import json
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import env_wrappers  # noqa: F401 (registers the environment)
from env_wrappers.errors import DataError
from env_wrappers.webshop.env import MAX_ACTION, WebShopEnv
from env_wrappers.webshop.goals import split_goals
from tests.unit.env_wrappers.webshop.webshop_data import entry, item, write_data
from tests.unit.env_wrappers.webshop.webshop_store import SHIRT, TOWELS, product_of, write_store

INFO: dict[str, Any] = {
    "admissible_actions": list,
    "won": bool,
    "task_type": str,
    "game": str,
    "goal": str,
    "state_hash": str,
    "inadmissible": bool,
    "inadmissible_count": int,
    "task_score": float,
    "score_details": (dict, type(None)),
}


def _make(data: Path, **settings: Any) -> WebShopEnv:
    return WebShopEnv(data, **{"split": "test", "nouns": "words", **settings})


@pytest.fixture
def env(store: Path) -> WebShopEnv:
    return _make(store)


def _goal_of(env: WebShopEnv, asin: str) -> int:
    """Return the index of a goal made from a product."""
    shop = env._session._shop
    index = product_of(shop, asin).index
    return next(i for i in range(env.num_tasks) if shop.goals[i].product == index)


def _buy(env: WebShopEnv, asin: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
    """Play the steps that buy a product, with the options that the goal names."""
    env.step(f"search[{product_of(env._session._shop, asin).title}]")
    env.step(f"click[{asin.lower()}]")
    wanted = env._session.goal.options
    for value in wanted if isinstance(wanted, tuple) else wanted.values():
        env.step(f"click[{value}]")
    return env.step("click[buy now]")


def test_gymnasium_finds_nothing_wrong(store: Path) -> None:
    for mode in ("text", "text_rich", "url"):
        env = gymnasium.make("hgpo/WebShop-v0", data=store, split="test", observation_mode=mode)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped, skip_render_check=True)


def test_the_data_can_be_named_by_the_variable(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (store, write_store(tmp_path / "other")):
        monkeypatch.setenv("WEBSHOP_DATA", str(folder))
        named = WebShopEnv(split="test", nouns="words")
        assert named._session._shop is _make(folder)._session._shop
        assert named._session._shop.catalogue.folder.is_relative_to(folder)


# Which goal


def test_a_seed_is_an_index_into_the_split(env: WebShopEnv) -> None:
    goals = env._session._shop.goals
    assert env.num_tasks == len(goals) == 31
    for seed in (0, 1, 30, 31, 10**12):
        observation, info = env.reset(seed=seed)
        place = seed % env.num_tasks
        assert info["game"] == f"test/{place}"
        assert info["goal"] == goals[place].instruction
        assert observation == f"WebShop [SEP] Instruction: [SEP] {info['goal']} [SEP] Search"


def test_splits_play_their_own_goals(store: Path) -> None:
    env = _make(store, split="train_products")
    places = split_goals(env._shop.goals, "train_products")
    assert 7 < env.num_tasks == len(places) < 31
    assert places[7] != 7
    for copy in (env, pickle.loads(pickle.dumps(env))):
        _, info = copy.reset(options={"goal": 7})
        assert (info["game"], copy._session.goal.index) == ("train_products/7", places[7])


def test_goals_can_be_filtered(store: Path) -> None:
    """`filter_goals` selects goals, which keep their names."""
    goals = _make(store)._shop.goals
    env = _make(
        store, filter_goals=lambda index, goal: goal.product == goals[5].product or index == 9
    )
    assert [env.reset(seed=task)[1]["game"] for task in (0, 1, 2)] == ["test/5", "test/9", "test/5"]
    assert env.reset(options={"goal": 1})[1]["goal"] == goals[9].instruction
    assert env.task_types == [env.reset(seed=task)[1]["task_type"] for task in range(2)]
    with pytest.raises(DataError, match="filter_goals leaves no goal in test"):
        _make(store, filter_goals=lambda index, goal: False)


def test_without_a_seed_the_originals_weights_draw(tmp_path: Path) -> None:
    """Without a seed, goals that the filter accepts are drawn with the original's weights."""
    entries = {"B1": entry("A towel"), "B2": entry("A mop", "dry"), "B3": entry("A brush", "dry")}
    data = write_data(tmp_path / "data", items=[*map(item, entries)], entries=entries)
    env = _make(data, filter_goals=lambda index, goal: "A brush" not in goal.instruction)
    env.reset(seed=0)
    drawn = Counter(env.reset()[1]["goal"][:5] for _ in range(3_000))
    assert drawn["A tow"] / 3_000 == pytest.approx(2 / 3, abs=0.05)


def test_a_goal_can_be_asked_for(env: WebShopEnv) -> None:
    assert env.reset(options={"goal": 7})[1]["game"] == "test/7"
    assert env.reset(seed=0, options={"goal": 8})[1]["game"] == "test/8"
    with pytest.raises(DataError, match="no goal 31 in test: there are 31"):
        env.reset(options={"goal": 31})
    with pytest.raises(ResetNeeded):
        env.step("search[towel]")
    with pytest.raises(DataError, match="no goal -1"):
        env.reset(options={"goal": -1})
    with pytest.raises(DataError, match="a goal is an index into the split, not 'red'"):
        env.reset(options={"goal": "red"})


def test_people_wrote_other_goals(store: Path) -> None:
    env = _make(store, goals="human")
    assert env.num_tasks == 1
    assert env.reset()[1]["goal"].startswith("i need a slim fit shirt in red, and price lower than")


# Members of a group


def test_members_of_a_group_share_the_shop_but_not_the_episode(store: Path) -> None:
    first, second = _make(store), _make(store)
    assert first._session._shop is second._session._shop
    start, info = first.reset(seed=3)
    other_start, other_info = second.reset(seed=3)
    assert (start, info) == (other_start, other_info)
    one, two = first.step("search[towel]"), second.step("search[shirt]")
    assert one[0] != two[0]
    assert one[4]["state_hash"] != two[4]["state_hash"]
    assert second.step("search[towel]")[0] == one[0]


# Rewards and ends


def test_a_perfect_purchase_ends_the_episode_with_the_reward(store: Path) -> None:
    for reward in ("success", "score"):
        env = _make(store, success_reward=3.0, reward=reward)
        env.reset(options={"goal": _goal_of(env, SHIRT)})
        _, worth, terminated, truncated, info = _buy(env, SHIRT)
        assert (worth, terminated, truncated) == (3.0, True, False)
        assert (info["won"], info["task_score"]) == (True, 1.0)
        assert info["score_details"]["r_type"] == 1.0
        assert info["score_details"]["noun_extractor"] == "words"
        assert info["admissible_actions"] == []
        with pytest.raises(ResetNeeded, match="again, after its end"):
            env.step("search[towel]")


@pytest.mark.parametrize("reward", ["success", "score"])
def test_an_imperfect_purchase_is_worth_its_score_or_nothing(store: Path, reward: str) -> None:
    env = _make(store, reward=reward)
    env.reset(options={"goal": _goal_of(env, SHIRT)})
    assert env.step("search[shirt]")[1] == 0.0
    env.step(f"click[{SHIRT.lower()}]")
    _, worth, terminated, _, info = env.step("click[buy now]")
    assert terminated
    assert not info["won"]
    assert info["task_score"] == 0.5, "neither of the two options, but attribute and price"
    assert worth == (10 * info["task_score"] if reward == "score" else 0.0)


def test_a_purchase_at_the_last_step_is_no_truncation(store: Path) -> None:
    env = _make(store, max_steps=3)
    env.reset(options={"goal": _goal_of(env, TOWELS[3])})
    assert _buy(env, TOWELS[3])[2:4] == (True, False)


# What the player is told


def test_the_info_has_the_same_keys_and_kinds_at_every_step(env: WebShopEnv) -> None:
    infos = [env.reset(seed=0)[1], env.step("search[towel]")[4], env.step("nonsense")[4]]
    infos.append(_buy(env, SHIRT)[4])
    for info in infos:
        assert info.keys() == INFO.keys()
        assert all(isinstance(info[key], kind) for key, kind in INFO.items())
        json.dumps(info)


def test_admissible_actions_are_in_the_agents_format(env: WebShopEnv) -> None:
    _, info = env.reset(options={"goal": _goal_of(env, SHIRT)})
    assert info["admissible_actions"] == ["search[<your query>]", "click[search]"]
    assert info["task_type"] == "fashion"
    info = env.step("search[slim cotton shirt]")[4]
    assert info["admissible_actions"][:3] == [
        "click[back to search]",
        "click[next >]",
        f"click[{SHIRT.lower()}]",
    ]


def test_observations_can_be_rich_or_addresses(store: Path) -> None:
    for mode, start in {"text_rich": "WebShop\nInstruction: \n", "url": "http://127"}.items():
        env = _make(store, observation_mode=mode)
        assert env.reset(seed=0)[0].startswith(start)
        assert env.step("search[towel]")[0] == env._session.observation(mode)
    env = _make(store, show_attributes=True)
    env.reset(seed=0)
    env.step("search[slim cotton shirt]")
    assert "click[attributes]" in env.step(f"click[{SHIRT.lower()}]")[4]["admissible_actions"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", "money"),
        ("observation_mode", "html"),
        ("goals", "animal"),
        ("nouns", "verbs"),
        ("split", "holiday"),
        ("split", "train"),  # is empty
    ],
)
def test_unknown_arguments_are_refused(store: Path, name: str, value: str) -> None:
    with pytest.raises(DataError, match=value):
        _make(store, **{name: value})


# Actions of all kinds


@pytest.mark.parametrize(
    "action",
    [
        *("", "\n", "buy", "¡compra! ☕\x00", "\ud800", "click[\x00]", "click[\ud800]"),
        *("search[" + "x" * 10**6 + "]", "search[" + "towel " * 10**5 + "]", "[" * 10**6),
    ],
    ids=lambda action: ascii(action)[:20] + f" ({len(action)})",
)
def test_any_string_is_a_safe_action(env: WebShopEnv, action: str) -> None:
    observation, before = env.reset(seed=0)
    after, reward, terminated, truncated, info = env.step(action)
    assert after == observation
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["inadmissible"]
    assert info["inadmissible_count"] == 1
    assert info["state_hash"] == before["state_hash"]


def test_a_page_of_any_length_is_an_observation(tmp_path: Path) -> None:
    data = write_store(tmp_path / "data")
    products = json.loads((data / "items_shuffle.json").read_text())
    products[0]["full_description"] = "☕ " * 10**6
    (data / "items_shuffle.json").write_text(json.dumps(products))
    env = _make(data)
    env.reset(seed=0)
    for action in ("search[slim cotton shirt]", f"click[{SHIRT.lower()}]", "click[description]"):
        page, *_ = env.step(action)
        assert page in env.observation_space
    assert len(page) > 10**6


@pytest.mark.parametrize("words", ["\x00\x1b", "\ud800", "毛巾 ☕ ümlaut", "towel\x00", "\u202e"])
@pytest.mark.parametrize("mode", ["text", "text_rich", "url"])
def test_any_characters_can_be_searched_for(store: Path, mode: str, words: str) -> None:
    env = _make(store, observation_mode=mode)
    env.reset(seed=0)
    observation, *_, info = env.step(f"search[{words}]")
    assert observation in env.observation_space
    assert not info["inadmissible"]


def test_the_longest_action_is_still_an_action(env: WebShopEnv) -> None:
    query = "towel " * MAX_ACTION
    for length, ignored in ((MAX_ACTION, False), (MAX_ACTION + 1, True)):
        env.reset(seed=0)
        action = f"search[{query[: length - 8]}]"
        assert len(action) == length
        assert env.step(action)[4]["inadmissible"] == ignored
