"""The shared, cached engine gives the same results as TextWorld's engine."""

import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from env_wrappers.alfworld import engine as find_engine
from env_wrappers.alfworld import memo
from env_wrappers.alfworld.engine import GameEngine, get_engine
from env_wrappers.alfworld.games import find_games
from env_wrappers.errors import DataError

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
ODD_COMMANDS = ("dance", "", "go to\nnowhere", "“take” the ☕", "take all", " look ", "help")

UNTOUCHED = """
import json, sys
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv

assert not any(name.startswith("env_wrappers") for name in sys.modules)
for line in sys.stdin:
    game, commands = json.loads(line)
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)), shuffle=False)
    env.load(game)
    state = env.reset()
    rows = [(state.feedback, state["admissible_commands"], state["won"])]
    for command in commands:
        state, _, _ = env.step(command)
        rows.append((state.feedback, state["admissible_commands"], state["won"]))
    print(json.dumps(rows), flush=True)
"""
Rows = list[tuple[str, list[str], bool]]
Play = Callable[[Path, list[str]], Rows]


@pytest.fixture(scope="module")
def textworld_engine() -> Iterator[Play]:
    """Yield a function that plays commands with TextWorld's own engine in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", UNTOUCHED],
        env=os.environ | {"HGPO_ALFWORLD_MEMO": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def play(game: Path, commands: list[str]) -> Rows:
            print(json.dumps([str(game), commands]), file=stdin, flush=True)
            rows = json.loads(stdout.readline())
            rows[0][0] = rows[0][0].replace(BANNER, "").strip()
            return [(text, [c for c in offered if c != "help"], won) for text, offered, won in rows]

        yield play
        stdin.close()


def _walk(engine: GameEngine, seed: int, steps: int = 24) -> list[str]:
    """Return a random sequence of commands for the engine, a quarter of them odd."""
    rng = random.Random(seed)
    state, _ = engine.reset()
    commands = []
    for _ in range(steps):
        odd = rng.random() < 0.25
        commands.append(rng.choice(ODD_COMMANDS if odd else state.admissible))
        state, _ = engine.step(state, commands[-1])
    return commands


def _play(engine: GameEngine, commands: list[str]) -> Rows:
    state, observation = engine.reset()
    rows = [(observation, list(state.admissible), state.won)]
    for command in commands:
        state, observation = engine.step(state, command)
        rows.append((observation, list(state.admissible), state.won))
    return rows


def _solution(game: Path) -> list[str]:
    return json.loads(game.read_text(encoding="utf-8"))["walkthrough"]


@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_the_engine_answers_as_the_untouched_one(
    generated_games: Path, index: int, textworld_engine: Play
) -> None:
    game = find_games(generated_games, "train")[index]
    commands = [*_walk(GameEngine(game), seed=index), *_solution(game)]
    expected = textworld_engine(game, commands)
    fresh = GameEngine(game)
    assert _play(fresh, commands) == expected
    assert _play(fresh, commands) == expected, "the second time, from memory"


def test_the_winning_step_is_as_in_the_untouched_engine(
    generated_games: Path, textworld_engine: Play
) -> None:
    game = find_games(generated_games, "train")[1]
    rows = _play(GameEngine(game), _solution(game))
    assert rows == textworld_engine(game, _solution(game))
    assert [won for _, _, won in rows] == [False] * (len(rows) - 1) + [True]


def test_official_games_answer_as_the_untouched_engine(
    official_games: list[Path], textworld_engine: Play
) -> None:
    game = official_games[0]
    commands = [*_walk(GameEngine(game), seed=7, steps=20), "help"]
    assert _play(GameEngine(game), commands) == textworld_engine(game, commands)


UNKNOWN_GRAMMARS = {
    "a command that depends on the state": (
        'template :: "examine {r}"',
        'template :: "examine {r} [{o.name | holds(a:agent, o:object)}]"',
    ),
    "a command that lists the other things": (
        'template :: "take {o} from {r}"',
        'template :: "take {o} [{x.name | receptacleatlocation(x:receptacle, y:location)}]"',
    ),
    "an expression in Python": (
        '"You are not carrying anything."',
        "\"Of {len(context.get('facts'))} facts, none.\"",
    ),
    "a query for what is not, in its short form": (
        '"You are not carrying anything."',
        '"You carried [{o.name | !holds(a:agent, o:object)}]."',
    ),
    "another task, which overrides the first": (
        "action GotoLocation {",
        'grammar :: """{"task": [{"rhs": "Your task is to: dance."}]}""";\n\naction GotoLocation {',
    ),
}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=() if "Python" in name else pytest.mark.slow)
        for name, change in UNKNOWN_GRAMMARS.items()
    ],
)
def test_an_unknown_grammar_answers_as_in_the_untouched_engine(
    generated_games: Path, tmp_path: Path, change: tuple[str, str], textworld_engine: Play
) -> None:
    """Games whose grammar breaks our assumptions give the same results as TextWorld's engine."""
    (game,) = find_games(generated_games, "train", ["pick_and_place_simple"])
    content = json.loads(game.read_text(encoding="utf-8"))
    assert change[0] in content["grammar"]
    content["grammar"] = content["grammar"].replace(*change)
    unknown = tmp_path / "unknown.tw-pddl"
    unknown.write_text(json.dumps(content))
    commands = _there_and_back(GameEngine(unknown, trusted=True))
    rows = _play(GameEngine(unknown, trusted=True), commands)
    assert rows == textworld_engine(unknown, commands)
    assert not any(text == "Nothing happens." for text, _, _ in rows)


def _there_and_back(engine: GameEngine) -> list[str]:
    """Return commands that take a thing, put it back, move it elsewhere, and examine it."""
    state, _ = engine.reset()
    commands: list[str] = []

    def do(start: str) -> None:
        nonlocal state
        commands.append(next(c for c in state.admissible if c.startswith(start)))
        state, _ = engine.step(state, commands[-1])

    def go_where(start: str) -> None:
        for place in [c for c in state.admissible if c.startswith("go to ")]:
            there, _ = engine.step(state, place)
            if any(c.startswith(start) for c in there.admissible):
                do(place)
                return

    do("inventory")
    go_where("take ")
    for start in ("inventory", "take ", "examine ", "inventory", "move ", "inventory", "take "):
        do(start)
    go_where("move ")
    for start in ("move ", "inventory", "examine "):
        do(start)
    return commands


def test_the_cache_can_be_disabled(generated_games: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    game = find_games(generated_games, "train")[0]
    commands = _walk(GameEngine(game), seed=3, steps=8)
    expected = _play(GameEngine(game), commands)
    monkeypatch.setenv("HGPO_ALFWORLD_MEMO", "0")
    plain = GameEngine(game)
    assert not plain._core.memoized
    assert _play(plain, commands) == expected


def test_an_unsupported_textworld_disables_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memo.textworld, "__version__", "1.8.0")
    with pytest.warns(UserWarning, match=r"1\.8\.0"):
        assert not memo.memo_enabled()


def test_episodes_on_one_engine_are_independent(generated_games: Path) -> None:
    game = find_games(generated_games, "train")[0]
    engine = get_engine(game)
    walks = [_walk(engine, seed) for seed in range(3)]
    alone = [_play(GameEngine(game), walk) for walk in walks]
    states = [engine.reset()[0] for _ in walks]
    together: list[Rows] = [[] for _ in walks]
    for step in range(len(walks[0])):
        for member, walk in enumerate(walks):
            states[member], text = engine.step(states[member], walk[step])
            row = (text, list(states[member].admissible), states[member].won)
            together[member].append(row)
    assert together == [rows[1:] for rows in alone]


def test_forgetting_states_changes_no_answer(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = find_games(generated_games, "train")[0]
    walk = _walk(GameEngine(game), seed=5, steps=60)
    expected = _play(GameEngine(game), walk)
    monkeypatch.setattr(find_engine, "STATES_KEPT", 3)
    engine = GameEngine(game)
    assert _play(engine, walk) == expected
    assert _play(engine, walk) == expected
    assert len(engine._states) <= 3


def test_engines_share_one_limit_of_cached_states(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the shared limit, only the engine with the most cached states drops them."""
    gc.collect()  # engines of other tests
    kept = 20 + sum(len(engine._states) for engine in find_engine._engines)
    monkeypatch.setattr(find_engine, "STATES_KEPT", kept)
    small, large = map(GameEngine, find_games(generated_games, "train")[:2])
    _play(small, _walk(small, seed=1, steps=2))
    few = len(small._states)
    for seed in range(5):
        _play(large, _walk(large, seed, steps=30))
        assert sum(len(engine._states) for engine in find_engine._engines) <= kept
    assert len(small._states) == few > 1


def test_the_state_hash_ignores_look(generated_games: Path) -> None:
    game = find_games(generated_games, "train")[0]
    engine = GameEngine(game)
    start, _ = engine.reset()
    looked, _ = engine.step(start, "look")
    nothing, _ = engine.step(start, "dance")
    place = next(c for c in start.admissible if c.startswith("go to "))
    moved, _ = engine.step(start, place)
    assert start.state_hash == looked.state_hash == nothing.state_hash != moved.state_hash
    assert engine._read >= {"atlocation", "inreceptacle", "opened", "holds", "not_inreceptacle"}
    assert "checked" not in engine._read


def test_the_state_hash_does_not_depend_on_history(generated_games: Path) -> None:
    """Carrying a thing away and back adds "not_..." facts but restores the state hash."""
    (game,) = find_games(generated_games, "train", ["pick_and_place_simple"])
    engine = GameEngine(game)
    state, _ = engine.reset()
    for command in _solution(game):
        if command.startswith("take "):
            break
        state, _ = engine.step(state, command)
    thing, source = command.removeprefix("take ").split(" from ")
    carried, _ = engine.step(state, command)
    for goto in [c for c in carried.admissible if c.startswith("go to ")]:
        place = goto.removeprefix("go to ")
        there, _ = engine.step(carried, goto)
        if f"move {thing} to {place}" in there.admissible:
            break
    else:
        pytest.fail("no other open place for it")
    back = there
    for command in (
        f"move {thing} to {place}",
        f"take {thing} from {place}",
        f"go to {source}",
        f"move {thing} to {source}",
    ):
        assert command in back.admissible
        back, _ = engine.step(back, command)
    assert back is not state
    assert back.state_hash == state.state_hash != carried.state_hash


def test_unknown_commands_share_one_cache_entry(generated_games: Path) -> None:
    engine = GameEngine(find_games(generated_games, "train")[0])
    start, _ = engine.reset()
    answers = {engine.step(start, f"gibberish {number}") for number in range(5)}
    assert answers == {(start, "Nothing happens.")}
    assert len(start._answers) == 1


def test_one_engine_per_game_and_reuse_of_freed_ones(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = find_games(generated_games, "valid_seen")
    assert get_engine(first) is get_engine(str(first))
    gc.collect()
    pool: list[object] = []
    monkeypatch.setattr(find_engine, "_free_cores", pool)
    made = GameEngine(second)
    core = made._core
    del made
    assert pool == [core]
    assert GameEngine(third)._core is core


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"pddl_domain": "", "grammar": "", "pddl_problem": ""}'],
    ids=["empty", "cut off", "no object", "no keys", "empty parts"],
)
def test_a_broken_game_is_named(tmp_path: Path, content: str) -> None:
    game = tmp_path / "broken.tw-pddl"
    game.write_text(content)
    with pytest.raises(DataError, match=r"broken\.tw-pddl") as caught:
        get_engine(game)
    assert "\n" not in str(caught.value)


def test_an_engine_that_failed_to_load_can_load_another_game(
    generated_games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = find_games(generated_games, "train")[0]
    content = json.loads(game.read_text(encoding="utf-8"))
    content["pddl_problem"] = content["pddl_problem"].replace("(atLocation agent1", "(at agent1")
    monkeypatch.setattr(find_engine, "_free_cores", [])
    monkeypatch.setattr(sys, "argv", ["mine"])  # the translator puts its own in place
    with pytest.raises(DataError, match="cannot load a game"):
        GameEngine(content)
    gc.collect()
    assert sys.argv == ["mine"]
    assert len(find_engine._free_cores) == 1
    assert _play(GameEngine(game), _solution(game))[-1][2]
    assert sys.argv == ["mine"]


def test_a_missing_game_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        get_engine(tmp_path / "nowhere" / "game.tw-pddl")
