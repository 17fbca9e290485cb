"""Walkthroughs that name things by their ids in the PDDL problem, as TextWorld's planner does.

A public copy of the official valid_unseen has such walkthroughs in all of its 134 games.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import textworld
from textworld.envs.pddl import PddlEnv

from env_wrappers.alfworld.check import check_tree
from env_wrappers.alfworld.engine import GameEngine, get_engine
from env_wrappers.alfworld.games import TREE, find_games
from env_wrappers.alfworld.planner import recorded_plan, why_not_won
from env_wrappers.datasets import MANIFEST
from hgpo_rllib.bench import alfworld as bench
from hgpo_rllib.evaluation.evaluate import evaluate
from tests.unit.cli.command import Run
from tests.unit.scripted_model import lines, make

SPLIT = "valid_seen"


def _write_ids(game: Path) -> None:
    """Replace the names of things in a game's walkthrough by their ids."""
    content = json.loads(game.read_text(encoding="utf-8"))
    ids = {name: key for key, name in get_engine(game).names.items()}
    plan = [re.sub(r"[a-z]+ \d+", lambda name: ids[name[0]], c) for c in content["walkthrough"]]
    assert all("_bar__" in command for command in plan)
    game.write_text(json.dumps(content | {"walkthrough": plan}), encoding="utf-8")


@pytest.fixture(scope="module")
def with_ids(generated_games: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the generated games of one split, with ids in their walkthroughs."""
    data = tmp_path_factory.mktemp("ids")
    shutil.copytree(generated_games / TREE / SPLIT, data / TREE / SPLIT)
    assert not (data / MANIFEST).exists()
    for game in find_games(data, SPLIT):
        _write_ids(game)
    return data


def test_a_recorded_plan_has_names(generated_games: Path, with_ids: Path) -> None:
    expected = [recorded_plan(game) for game in find_games(generated_games, SPLIT)]
    assert [recorded_plan(game) for game in find_games(with_ids, SPLIT)] == expected


def test_official_games(official_games: list[Path], tmp_path: Path) -> None:
    for game in official_games:
        copy = tmp_path / game.parent.name / game.name
        shutil.copytree(game.parent, copy.parent)
        _write_ids(copy)
        assert recorded_plan(copy) == recorded_plan(game)
        assert why_not_won(GameEngine(copy), recorded_plan(copy)) is None


def test_a_plan_of_textworlds_own_planner_wins(
    generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan by TextWorld's own planner, which uses ids, wins after conversion to commands."""
    monkeypatch.setattr(sys, "argv", ["mine"])  # the translator puts its own in place
    (game,) = find_games(generated_games, SPLIT, ["pick_and_place_simple"])
    env = PddlEnv(textworld.EnvInfos(policy_commands=True))
    env.load(str(game))
    plan = env.reset()["policy_commands"]
    assert plan[0].startswith("go to ")
    assert all("_bar__" in command for command in plan)
    engine = GameEngine(game)
    assert why_not_won(engine, plan) is not None
    assert why_not_won(engine, engine.commands(plan)) is None


def test_checking_plays_them(with_ids: Path) -> None:
    found = check_tree(with_ids, replay=True)
    assert found.broken == {}
    assert all(game.replayed for game in found.games)


def test_demonstrations_are_the_same(
    generated_games: Path, with_ids: Path, tmp_path: Path, hgpo: Run
) -> None:
    for data, name in ((generated_games, "names"), (with_ids, "ids")):
        out = tmp_path / f"{name}.jsonl"
        settings = (f"env.data={data}", "env.options={}", f"env.train_split={SPLIT}")
        status, stdout, _ = hgpo("data", "demos", "alfworld_pocket", out, *settings)
        assert (status, stdout.endswith(" of 3 tasks, 0 episodes left out\n")) == (0, True)
    assert (tmp_path / "ids.jsonl").read_bytes() == (tmp_path / "names.jsonl").read_bytes()


def test_the_oracle_of_evaluations_wins(with_ids: Path, tmp_path: Path) -> None:
    finished = evaluate(make(with_ids, tmp_path, None, agent="oracle", seeds=1))
    assert finished.summary["results"]["all"]["success_rate"]["mean"] == 1
    assert not any(step["inadmissible"] for row in lines(finished) for step in row["steps"])


def test_the_oracle_of_the_benchmark_wins(with_ids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mine"])  # the translator puts its own in place
    monkeypatch.setattr(bench, "POLICIES", ("oracle",))
    (oracle,) = bench.play_textworld(str(find_games(with_ids, SPLIT)[0]), max_steps=10)
    assert oracle.answers[-1][2]
