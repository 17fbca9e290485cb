"""Recorded plans, Fast Downward's plans and time limit, and whether plans win."""

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from env_wrappers.alfworld import planner
from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import GAME_FILE, find_games
from env_wrappers.alfworld.planner import find_plan, recorded_plan, why_not_won
from env_wrappers.errors import DataError


def _changed(game: Path, folder: Path, **changes: object) -> Path:
    """Return a copy of a game file with some values changed."""
    content = json.loads(game.read_text(encoding="utf-8")) | changes
    copy = folder / GAME_FILE
    copy.write_text(json.dumps(content), encoding="utf-8")
    return copy


def test_the_planner_wins_a_generated_game(generated_games: Path, tmp_path: Path) -> None:
    """The planner's plan wins a generated game whose walkthrough has been removed."""
    (game,) = find_games(generated_games, "train", ["pick_clean_then_place_in_recep"])
    plan = find_plan(_changed(game, tmp_path, walkthrough=None), seconds=120)
    assert why_not_won(GameEngine(game), plan) is None
    assert any(command.startswith("clean ") for command in plan)


def test_the_planner_wins_an_official_game(official_game: Path) -> None:
    plan = find_plan(official_game, seconds=120)
    assert why_not_won(GameEngine(official_game), plan) is None


def test_the_time_limit_ends_the_search(generated_games: Path) -> None:
    """The time limit ends the search promptly and leaves no search process behind."""
    game = find_games(generated_games, "train")[0]
    GameEngine(game)  # the first load of a process takes long
    start = time.monotonic()
    with pytest.raises(DataError, match=r"no plan for .*game\.tw-pddl within 0\.01 seconds"):
        find_plan(game, seconds=0.01)
    assert time.monotonic() - start < 20
    children = [process.cmdline() for process in psutil.Process().children()]
    assert not any("spawn_main" in argument for command in children for argument in command)


def die(game: Path, trusted: bool) -> None:
    os._exit(1)


def look(game: Path, trusted: bool) -> list[str]:
    return ["look"]


def find_nothing(game: Path, trusted: bool) -> list[str]:
    return []


def test_a_planner_that_dies_is_no_time_out(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search process that dies, such as one out of memory, is not reported as a timeout."""
    monkeypatch.setattr(planner, "_search", die)
    with pytest.raises(DataError, match="process died"):
        find_plan(find_games(generated_games, "train")[0], seconds=60)


@pytest.mark.parametrize(
    ("search", "reason"), [(find_nothing, "finds no plan"), (look, "does not win: after all 1")]
)
def test_only_a_plan_that_wins_is_returned(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch, search: object, reason: str
) -> None:
    monkeypatch.setattr(planner, "_search", search)
    with pytest.raises(DataError, match=reason):
        find_plan(find_games(generated_games, "train")[0], seconds=60)


def test_why_a_plan_does_not_win(generated_games: Path) -> None:
    game = find_games(generated_games, "train")[0]
    engine, plan = GameEngine(game), recorded_plan(game)
    assert why_not_won(engine, plan) is None
    assert why_not_won(engine, [*plan, "dance"]) is None, "what follows the end is not played"
    assert "the goal is not reached" in str(why_not_won(engine, plan[:-1]))
    assert "command 1 of 2, 'dance', is not admissible" in str(why_not_won(engine, ["dance", "x"]))


@pytest.mark.parametrize("walkthrough", [None, [], "look", [1]])
def test_no_recorded_plan(generated_games: Path, tmp_path: Path, walkthrough: object) -> None:
    game = _changed(find_games(generated_games, "train")[0], tmp_path, walkthrough=walkthrough)
    with pytest.raises(DataError, match="no recorded walkthrough"):
        recorded_plan(game)
