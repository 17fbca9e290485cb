"""Finding and choosing games, and errors that name every broken game and a remedy."""

import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games, is_solvable, task_type_of
from env_wrappers.errors import DataError

TASK = "pick_and_place_simple-Mug-None-Desk-301"


def _content(generated_games: Path) -> dict[str, Any]:
    return json.loads(find_games(generated_games, "train")[0].read_text(encoding="utf-8"))


def _write(data: Path, content: str | dict[str, Any]) -> Path:
    game = data / "json_2.1.1" / "train" / TASK / "trial_1" / "game.tw-pddl"
    game.parent.mkdir(parents=True)
    game.write_text(content if isinstance(content, str) else json.dumps(content))
    return game


def _message(caught: pytest.ExceptionInfo[DataError]) -> str:
    """Return the message of an error and assert that it is one line."""
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- where the data is --------------------------------------------------------------------------


def test_alfworld_data_is_the_default(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(generated_games))
    assert find_games(None, "train") == find_games(generated_games, "train")
    assert ALFWorldEnv(split="valid_seen").num_tasks == 3
    monkeypatch.setenv("ALFWORLD_DATA", "/nowhere")
    assert find_games(generated_games, "train"), "what is given comes first"


def test_without_alfworld_data_games_are_sought_where_alfworld_seeks_them(
    generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError) as caught:
        find_games(None, "train")
    message = _message(caught)
    assert f"{tmp_path}/.cache/alfworld/json_2.1.1/train (from ALFWORLD_DATA" in message
    assert "<data>/json_2.1.1/<split>/<task>/<trial>/game.tw-pddl" in message
    assert "alfworld-download" in message
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/alfworld").symlink_to(generated_games)
    assert len(find_games(None, "train")) == 3


def test_a_wrong_alfworld_data_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "moved"))
    with pytest.raises(DataError) as caught:
        ALFWorldEnv()
    message = _message(caught)
    assert message.startswith(
        f"no ALFWorld games: {tmp_path}/moved/json_2.1.1/train (from ALFWORLD"
    )
    assert "alfworld-download" in message


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train \(0 game files there\)\. Expected <data>/json"):
        ALFWorldEnv(tmp_path)


# --- broken games -------------------------------------------------------------------------------


def test_a_game_that_was_cut_off_is_named(generated_games: Path, tmp_path: Path) -> None:
    text = json.dumps(_content(generated_games))
    game = _write(tmp_path, text[: len(text) // 2])
    with pytest.raises(DataError) as caught:
        ALFWorldEnv(tmp_path)
    assert _message(caught).startswith(f"{game} is truncated or not a game: ")
    assert "remove the file or fetch it again" in _message(caught)


def test_a_game_cut_off_after_its_mark_is_named_when_it_is_played(
    generated_games: Path, tmp_path: Path
) -> None:
    game = _write(tmp_path, '{"solvable": true, "pddl_domain": "(def')
    env = ALFWorldEnv(tmp_path)
    with pytest.raises(DataError) as caught:
        env.reset(seed=0)
    assert f"cannot load {game}: JSONDecodeError: Unterminated string" in _message(caught)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda grammar: 'mug(m) :: "a {m.name}"', "FailedToken"),
        (lambda grammar: grammar[: len(grammar) // 2], "FailedToken"),
        (lambda grammar: grammar.replace('"intro"', '"start"'), "#intro#"),
        (lambda grammar: grammar.replace("action GotoLocation", "action MoveTo"), "gotolocation"),
        (lambda grammar: 2, "TypeError"),
    ],
    ids=["other syntax", "cut off", "no introduction", "other actions", "no text"],
)
def test_a_grammar_of_another_version_is_named(
    generated_games: Path, tmp_path: Path, change: Any, cause: str
) -> None:
    content = _content(generated_games)
    game = _write(tmp_path, content | {"grammar": change(content["grammar"])})
    env = ALFWorldEnv(tmp_path, trusted=True)
    with pytest.raises(DataError) as caught:
        env.reset(seed=0)
    message = _message(caught)
    assert message.startswith(f"cannot load {game}: ")
    assert cause in message
    assert "remove the file or fetch it again" in message


def test_a_grammar_that_lacks_an_answer_is_named_when_it_is_needed(
    generated_games: Path, tmp_path: Path
) -> None:
    content = _content(generated_games)
    grammar = content["grammar"].replace('"GotoLocation.feedback"', '"MoveTo.feedback"')
    game = _write(tmp_path, content | {"grammar": grammar})
    env = ALFWorldEnv(tmp_path, trusted=True)
    _, info = env.reset(seed=0)
    move = next(a for a in info["admissible_actions"] if a.startswith("go to "))
    with pytest.raises(DataError) as caught:
        env.step(move)
    assert _message(caught).startswith(f"{game} cannot answer '{move}': CSGUnknownSymbolError")
    env.reset(seed=0)
    assert env.step("dance")[0] == "Nothing happens.", "it can be reset"


def test_the_older_wording_of_a_grammar_is_played(generated_games: Path, tmp_path: Path) -> None:
    """Grammars from before alfworld 0.4, with "put in/on" instead of "move to", can be played."""
    content = _content(generated_games)
    template = "move {o} to {r}"
    assert template in content["grammar"]
    grammar = content["grammar"].replace(template, "put {o} in/on {r}")
    _write(tmp_path, content | {"grammar": grammar})
    env = ALFWorldEnv(tmp_path, trusted=True)
    env.reset(seed=0)
    for command in content["walkthrough"]:
        *_, info = env.step(command)
        if command.startswith("take "):
            break
    assert any(a.startswith("put ") and " in/on " in a for a in info["admissible_actions"])


def test_unsolvable_games_are_refused(generated_games: Path, tmp_path: Path) -> None:
    game = _write(tmp_path, _content(generated_games) | {"solvable": False})
    with pytest.raises(DataError, match=r"no solvable ALFWorld game .* \(1 game files there\)"):
        ALFWorldEnv(tmp_path)
    with pytest.raises(DataError) as caught:
        ALFWorldEnv(generated_games).reset(options={"game": game})
    assert _message(caught) == f"{game} is not marked solvable: choose another game"


def test_an_unreadable_game_is_named(
    generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = _write(tmp_path, _content(generated_games))
    game.chmod(0)
    if os.access(game, os.R_OK):  # root may read everything: let the read fail instead
        opened = os.open

        def refuse(path: Any, *arguments: Any, **named: Any) -> int:
            if Path(path) == game:
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, *arguments, **named)

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError) as caught:
        ALFWorldEnv(tmp_path)
    assert _message(caught).startswith(f"cannot read {game}: Permission denied; make it readable")


@pytest.mark.parametrize("path", ["a folder", "missing", "x" * 300])
def test_a_path_that_is_no_file_is_named(generated_games: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "a folder").mkdir()
    with pytest.raises(DataError, match=f"cannot read {tmp_path / path}: "):
        ALFWorldEnv(generated_games).reset(options={"game": tmp_path / path})
    if len(path) > 255:
        with pytest.raises(DataError, match=r"cannot read .*: File name too long"):
            find_games(tmp_path / path, "train")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    game = _write(tmp_path, "")
    game.write_bytes(b'{"solvable": true, "\xff\xfe"}')
    with pytest.raises(DataError, match=f"cannot load {game}: UnicodeDecodeError"):
        ALFWorldEnv(tmp_path).reset(seed=0)


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    game = _write(tmp_path, {"solvable": False})
    assert not is_solvable(game)
    game.write_text('{"solvable":true}')
    assert is_solvable(game)


def test_environments_that_exist_together_have_the_same_games(
    generated_games: Path, tmp_path: Path
) -> None:
    """Environments share one list of games, which is renewed once none of them is left."""
    data = tmp_path / "data"
    shutil.copytree(generated_games, data)
    first, second = ALFWorldEnv(data), ALFWorldEnv(data)
    assert first.games is second.games
    assert first.games == [str(game) for game in find_games(data, "train")]
    of_a_task_type = ALFWorldEnv(data, task_types=[task_type_of(Path(first.games[0]))])
    assert of_a_task_type.games is not first.games
    count = first.num_tasks
    Path(first.games[0]).unlink()
    assert ALFWorldEnv(data).num_tasks == count
    del first, second
    gc.collect()
    assert ALFWorldEnv(data).num_tasks == count - 1


# --- choosing -----------------------------------------------------------------------------------


def test_a_seed_counts_round_and_a_game_comes_first(generated_games: Path) -> None:
    env = ALFWorldEnv(generated_games)

    def played(seed: int | None = None, game: Any = None) -> int:
        _, info = env.reset(seed=seed, options=None if game is None else {"game": game})
        return env.games.index(info["game"])

    assert [played(seed) for seed in (0, 2, 3, 10**20)] == [0, 2, 0, 1]
    assert played(seed=0, game=1) == 1
    assert played(game=np.int64(2)) == 2
    assert played(seed=1, game=env.games[0]) == 0
    assert played(game=Path(env.games[1])) == 1
    assert {played() for _ in range(30)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (3, r"no game 3 in train: there are 3 \(0 is the first\)"),
        (-1, "no game -1 in train: there are 3"),
        (1.5, "a game is an index or the path of a file, not 1.5"),
        (["/a"], r"a game is an index or the path of a file, not \['/a'\]"),
    ],
)
def test_a_game_that_is_not_there_is_refused(
    generated_games: Path, game: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        ALFWorldEnv(generated_games).reset(options={"game": game})


def test_games_are_sorted_filtered_and_found_from_either_directory(generated_games: Path) -> None:
    games = find_games(generated_games, "train")
    assert games == sorted(games) == find_games(generated_games / "json_2.1.1", "train")
    look = find_games(str(generated_games), "train", ["look_at_obj_in_light"])
    assert [task_type_of(game) for game in look] == ["look_at_obj_in_light"]
    with pytest.raises(DataError, match="pick_two_obj_and_place"):
        find_games(generated_games, "train", ["pick_two_obj_and_place"])
    with pytest.raises(DataError, match="unknown task type 'juggle'"):
        find_games(generated_games, "train", ["juggle"])


def test_unsolvable_and_unsupported_games_are_skipped(tmp_path: Path) -> None:
    def write(folder: str, solvable: bool, task_type: str | None = None) -> None:
        trial = tmp_path / "json_2.1.1" / "train" / folder / "trial_1"
        trial.mkdir(parents=True)
        (trial / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))
        if task_type:
            (trial / "traj_data.json").write_text(json.dumps({"task_type": task_type}))

    write("pick_and_place_simple-Mug-None-Desk-301", True)
    write("pick_and_place_simple-Mug-None-Shelf-301", False)
    write("pick_and_place_simple-AppleSliced-None-Desk-301", True)
    write("pick_and_place_with_movable_recep-Mug-Bowl-Desk-301", True, "movable")
    write("my own game", True, "pick_two_obj_and_place")
    names = [game.parent.parent.name for game in find_games(tmp_path, "train")]
    assert names == ["my own game", "pick_and_place_simple-Mug-None-Desk-301"]


def test_a_data_directory_may_have_any_name(generated_games: Path, tmp_path: Path) -> None:
    """Only the folders of the task tell whether the engine supports it."""
    data = shutil.copytree(generated_games, tmp_path / "movable" / "Sliced")
    assert len(find_games(data, "train")) == len(find_games(generated_games, "train"))


def test_an_absolute_path_gives_absolute_games(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even while an environment with a relative path to the same folder exists."""
    monkeypatch.chdir(generated_games.parent)
    relative, absolute = ALFWorldEnv(generated_games.name), ALFWorldEnv(generated_games)
    monkeypatch.chdir("/")
    absolute.reset(seed=0)
    assert not Path(relative.games[0]).is_absolute()
    assert Path(absolute.games[0]).is_absolute()


def test_relative_paths_in_two_folders_are_different_data(
    generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments that exist together share games by the folder, not by its relative path."""
    for name in ("one", "two"):
        shutil.copytree(generated_games, tmp_path / name / "data")
    find_games(tmp_path / "two" / "data", "train")[0].unlink()
    monkeypatch.chdir(tmp_path / "one")
    first = ALFWorldEnv("data")
    monkeypatch.chdir(tmp_path / "two")
    second = ALFWorldEnv("data")
    assert second.num_tasks == first.num_tasks - 1
    other = Path(second.games[0])
    monkeypatch.chdir(tmp_path / "one")
    (tmp_path / "one" / other).write_bytes(find_games("data", "train")[0].read_bytes())
    goal = first.reset(options={"game": str(other)})[1]["goal"]
    monkeypatch.chdir(tmp_path / "two")
    assert second.reset(options={"game": str(other)})[1]["goal"] != goal
