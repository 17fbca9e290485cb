"""Every reader refuses game files that could run code or harm the planner."""

import json
import pickle
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import env_wrappers  # noqa: F401  registers the environments
from env_wrappers.alfworld import engine
from env_wrappers.alfworld.check import check_tree
from env_wrappers.alfworld.engine import GameEngine, get_engine
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.memo import MEMO_VARIABLE
from env_wrappers.alfworld.planner import find_plan
from env_wrappers.errors import DataError
from hgpo_rllib.bench.alfworld import play_textworld
from hgpo_rllib.errors import RunStoppedError
from hgpo_rllib.evaluation.evaluate import evaluate
from tests.unit.cli.command import Run
from tests.unit.scripted_model import make

Game = dict[str, Any]
TASK = "Your task is to: "
REMEDY = "allow it with env.options.trusted=true"


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """Return the path of a file that a successful attack creates."""
    return tmp_path / "proof"


def _code(proof: Path) -> str:
    """Return a grammar symbol that creates a file when TextWorld evaluates it."""
    return f"{{__import__('pathlib').Path('{proof}').touch() or '.'}}"


def _escaped(text: str) -> str:
    """Return a text with its braces as JSON escapes."""
    return text.replace("{", r"\u007b").replace("}", r"\u007d")


def _changed(generated_games: Path, data: Path, change: Callable[[Game], Game]) -> Path:
    """Write a tree with one changed game and return the game's file."""
    (game,) = find_games(generated_games, "train", ["pick_and_place_simple"])
    content = json.loads(game.read_text(encoding="utf-8"))
    copy = data / game.relative_to(generated_games)
    shutil.copytree(game.parent, copy.parent)
    changed = change(content)
    assert changed != content
    copy.write_text(json.dumps(changed), encoding="utf-8")
    return copy


def _replaced(key: str, old: str, new: str) -> Callable[[Game], Game]:
    def change(game: Game) -> Game:
        assert old in game[key]
        return game | {key: game[key].replace(old, new)}

    return change


def _in_introduction(proof: Path) -> Callable[[Game], Game]:
    return _replaced("grammar", "-= Welcome", f"{_code(proof)}-= Welcome")


ATTACKS = {
    "the introduction": _in_introduction,
    "the task": lambda proof: _replaced("grammar", TASK, TASK + _code(proof)),
    "the task, escaped": lambda proof: _replaced("grammar", TASK, TASK + _escaped(_code(proof))),
    "a command": lambda proof: _replaced("grammar", '"inventory"', f'"inventory {_code(proof)}"'),
    "another rule for the task": lambda proof: _replaced(
        "grammar",
        "action GotoLocation {",
        f'grammar :: """{{"task": [{{"rhs": "{_code(proof)}"}}]}}""";\n\naction GotoLocation {{',
    ),
}
LOADERS: dict[str, Callable[[Path], object]] = {
    "reset": lambda game: ALFWorldEnv(game.parents[4]).reset(seed=0),
    "reset to a path": lambda game: ALFWorldEnv(game.parents[4]).reset(options={"game": game}),
    "a vector": lambda game: gymnasium.make_vec(
        "hgpo/ALFWorld-v0", num_envs=2, vectorization_mode="sync", data=game.parents[4]
    ).reset(seed=0),
    "the engine": GameEngine,
    "a shared engine": get_engine,
    "the content of a file": lambda game: GameEngine(json.loads(game.read_text())),
    "the planner": lambda game: find_plan(game, seconds=30),
    "the benchmark": lambda game: play_textworld(str(game), max_steps=1),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_code_in_a_grammar_is_refused(
    generated_games: Path, tmp_path: Path, proof: Path, attack: Callable[..., Any]
) -> None:
    """Code in any place that TextWorld evaluates is refused, unless the games are trusted."""
    game = _changed(generated_games, tmp_path / "data", attack(proof))
    with pytest.raises(DataError) as caught:
        ALFWorldEnv(tmp_path / "data").reset(seed=0)
    assert str(caught.value).startswith(f"cannot load {game}: its grammar is not ALFWorld's")
    assert REMEDY in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not proof.exists()
    ALFWorldEnv(tmp_path / "data", trusted=True).reset(seed=0)
    assert proof.exists()


def test_copies_repeat_actions_that_are_not_offered(generated_games: Path, tmp_path: Path) -> None:
    """With another grammar, `help` changes the state although it is not admissible."""
    _changed(generated_games, tmp_path / "data", _replaced("grammar", TASK, f"Now. {TASK}"))
    env = ALFWorldEnv(tmp_path / "data", trusted=True)
    start = env.reset(seed=0)[1]["state_hash"]
    assert env.step("help")[4]["state_hash"] != start
    for copied in (deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert copied.step("look") == env.step("look")


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_whatever_loads_games_refuses(
    generated_games: Path, tmp_path: Path, proof: Path, load: Callable[[Path], object]
) -> None:
    game = _changed(generated_games, tmp_path / "data", _in_introduction(proof))
    with pytest.raises(DataError, match="its grammar is not ALFWorld's"):
        load(game)
    assert not proof.exists()


def test_the_untouched_engine_refuses(
    generated_games: Path, tmp_path: Path, proof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMO_VARIABLE, "0")
    monkeypatch.setattr(engine, "_free_cores", [])
    game = _changed(generated_games, tmp_path / "data", _in_introduction(proof))
    with pytest.raises(DataError, match="its grammar is not ALFWorld's"):
        GameEngine(game)
    assert not proof.exists()


def test_checking_data_refuses(
    generated_games: Path, tmp_path: Path, proof: Path, hgpo: Run
) -> None:
    """`data check` refuses code with and without --replay; --trusted allows it."""
    data = tmp_path / "data"
    game = _changed(generated_games, data, _in_introduction(proof))
    for options in [(), ("--replay",)]:
        status, stdout, _ = hgpo("data", "check", "alfworld", data, *options)
        assert status == 1
        broken = stdout.splitlines()[-1]
        assert broken.startswith(f"broken: {game.relative_to(data)}: its grammar is not ALFWorld's")
        assert REMEDY in broken
    assert not proof.exists()
    status, _, _ = hgpo("data", "check", "alfworld", data, "--replay", "--trusted")
    assert status == 0
    assert proof.exists()


@pytest.mark.parametrize("expert", ["oracle", pytest.param("planner", marks=pytest.mark.slow)])
def test_demonstrating_and_playing_refuse(
    generated_games: Path, tmp_path: Path, proof: Path, hgpo: Run, expert: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "demos.jsonl"
    _changed(generated_games, data, _in_introduction(proof))
    settings = (f"env.data={data}", "env.options={}", "env.max_steps=50")
    demos = ("data", "demos", "alfworld_pocket", out, *settings, "--expert", expert)
    play = ("play", "alfworld", "--data", data, "--split", "train")
    for command in (demos, play):
        status, _, stderr = hgpo(*command)
        assert status == 2
        assert "its grammar is not ALFWorld's" in stderr
        assert "--trusted" in stderr
    assert not proof.exists()
    assert hgpo(*demos, "env.options.trusted=true")[0] == 0
    assert proof.exists()
    proof.unlink()
    other = tmp_path / "other"  # the engine of the first game is cached
    _changed(generated_games, other, _in_introduction(proof))
    play = ("play", "alfworld", "--data", other, "--split", "train", "env.options.trusted=true")
    assert hgpo(*play, stdin="q\n")[0] == 0
    assert proof.exists()


def test_evaluating_refuses(
    generated_games: Path, tmp_path: Path, proof: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation refuses code in a grammar unless the environment's option `trusted` is set."""
    data = tmp_path / "data"
    _changed(generated_games, data, _in_introduction(proof))
    arguments = {"agent": "oracle", "seeds": 1, "games": 1, "split": "train"}
    with pytest.raises(RunStoppedError):
        evaluate(make(data, tmp_path / "refused", None, **arguments))
    assert "its grammar is not ALFWorld's" in caplog.text
    assert not proof.exists()
    request = make(data, tmp_path / "trusted", None, **arguments)
    request.config.env.options["trusted"] = True
    assert evaluate(request).summary["results"]["all"]["success_rate"]["mean"] == 1
    assert proof.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_replaced("pddl_domain", "(isClean ?o)", "(isHot ?o)"), "its PDDL domain is not"),
        (_replaced("pddl_problem", "agent1", "agent{a.__class__}"), "its PDDL problem has names"),
        (_replaced("pddl_problem", "agent1", "agent" + "1" * 20_000), "its PDDL problem has names"),
        (_replaced("pddl_problem", "agent1", "agent#intro#"), "its PDDL problem has names"),
    ],
    ids=["another domain", "a format in a name", "a name of 20 kB", "a symbol in a name"],
)
def test_other_parts_are_data_alone(
    generated_games: Path, tmp_path: Path, change: Callable[[Game], Game], reason: str
) -> None:
    """Other parts that could run code or overflow the planner's buffers are refused."""
    game = _changed(generated_games, tmp_path / "data", change)
    with pytest.raises(DataError, match=f"cannot load {game}: {reason}"):
        get_engine(game)
    ((_, why),) = check_tree(tmp_path / "data").broken.items()
    assert why.startswith(reason)


@pytest.mark.parametrize("trusted", ["false", 1, None])
def test_trust_is_true_or_false(generated_games: Path, trusted: Any) -> None:
    """`trusted` must be a boolean, not a string, a number or None."""
    with pytest.raises(DataError, match="trusted must be true or false"):
        ALFWorldEnv(generated_games, trusted=trusted)


def test_comments_and_layout_of_the_domain_do_not_matter(
    generated_games: Path, tmp_path: Path
) -> None:
    change = _replaced("pddl_domain", "(define", "; ours (not really)\n  (define")
    get_engine(_changed(generated_games, tmp_path / "data", change))
    assert check_tree(tmp_path / "data").broken == {}


def test_any_words_can_be_the_task(generated_games: Path, tmp_path: Path) -> None:
    """A task can contain any words, as `alfworld-generate` can write people's instructions."""
    words = "Put Ann's mug (the 2nd one) on the café-table; 100 %, please!"
    change = _replaced("grammar", TASK, f"{TASK}{words} Or: ")
    game = _changed(generated_games, tmp_path / "data", change)
    assert get_engine(game).reset()[1].rpartition(TASK)[2].startswith("Put Ann's mug (the 2nd")
