"""The cache of translations on disk: hits equal fresh translations; damaged entries are renewed."""

import io
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import fast_downward
import pytest

from env_wrappers.alfworld import translations
from env_wrappers.alfworld.engine import GameEngine
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.translations import CACHE_VARIABLE, cache_directory, translate
from env_wrappers.errors import DataError


@pytest.fixture
def game(generated_games: Path) -> dict[str, Any]:
    """Return the content of a generated game."""
    return json.loads(find_games(generated_games, "train")[0].read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache directory in use, which is empty."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every translation appends its problem."""
    calls: list[str] = []
    original = fast_downward.pddl2sas

    def counted(domain: str, problem: str, **options: Any) -> Any:
        calls.append(problem)
        return original(domain, problem, **options)

    monkeypatch.setattr(fast_downward, "pddl2sas", counted)
    return calls


def _translate(game: dict[str, Any]) -> tuple[Any, str]:
    return translate(game["pddl_domain"], game["pddl_problem"])


def _dumped(task: Any) -> str:
    """Return the translator's own dump of a task."""
    text = io.StringIO()
    with redirect_stdout(text):
        task.dump()
    return text.getvalue()


def test_what_is_kept_is_what_the_translator_gives(
    game: dict[str, Any], folder: Path, translated: list[str]
) -> None:
    """A cached SAS text and task equal the translator's, without translating again."""
    task, sas = _translate(game)
    kept_task, kept_sas = _translate(game)
    assert len(translated) == 1
    assert kept_sas == sas
    assert _dumped(kept_task) == _dumped(task)
    assert len(_dumped(task)) > 1000


def test_an_engine_plays_from_a_kept_translation(
    game: dict[str, Any], folder: Path, translated: list[str]
) -> None:
    """Games that differ only in wording share a cached translation; another problem does not."""
    first = [GameEngine(game).reset() for _ in range(2)]
    assert len(translated) == 1
    (one, text), (two, again) = first
    assert (one.admissible, one.state_hash, text) == (two.admissible, two.state_hash, again)
    engine = GameEngine(game)
    state, _ = engine.reset()
    for command in game["walkthrough"]:
        state, _ = engine.step(state, command)
    assert state.won
    other = game | {
        "grammar": game["grammar"].replace("Your task is to: ", "Your task is to: please ")
    }
    GameEngine(other)
    assert len(translated) == 1
    problem = game["pddl_problem"]
    cut = problem[problem.index("(canContain") :]
    GameEngine(game | {"pddl_problem": problem.replace(cut[: cut.index(")") + 1], "")})
    assert len(translated) == 2
    assert len(list(folder.iterdir())) == 2


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[:-100],
    "a bit flipped": _flipped,
    "not compressed": lambda data: b"begin_version\n3\nend_version\n",
    "not text": lambda data: zlib.compress(b"\xff\xfe" * 100),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_translated_again(
    game: dict[str, Any], folder: Path, translated: list[str], damage: Callable[[bytes], bytes]
) -> None:
    _, sas = _translate(game)
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert _translate(game)[1] == sas
    assert len(translated) == 2
    assert _translate(game)[1] == sas
    assert len(translated) == 2, "and is whole again"


def test_other_versions_have_entries_of_their_own(
    game: dict[str, Any], folder: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _translate(game)
    monkeypatch.setattr(translations.textworld, "__version__", "1.8.0")
    _translate(game)
    monkeypatch.setattr(translations.metadata, "version", lambda name: "99")
    _translate(game)
    assert len(translated) == len(list(folder.iterdir())) == 3


def test_zero_keeps_nothing(
    game: dict[str, Any], tmp_path: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "0")
    assert cache_directory() is None
    _translate(game)
    _translate(game)
    assert len(translated) == 2
    assert not list(tmp_path.iterdir())


def test_the_default_is_the_users_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for base, expected in (
        (str(tmp_path / "xdg"), tmp_path / "xdg"),
        ("relative", tmp_path / ".cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        folder = cache_directory()
        assert folder == expected / "hgpo-rllib" / "alfworld"
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_made_is_done_without(
    game: dict[str, Any], tmp_path: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "kept"))
    with pytest.warns(UserWarning, match=f"not kept: .*file.*{CACHE_VARIABLE}"):
        _translate(game)
    assert len(translated) == 1


def test_a_directory_that_others_can_write_to_is_not_used(
    folder: Path, game: dict[str, Any], translated: list[str]
) -> None:
    _translate(game)
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="not this user's alone"):
        _translate(game)
    assert len(translated) == 2


def test_a_full_disk_is_no_error_and_leaves_nothing(
    game: dict[str, Any], folder: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    _translate(game)
    assert not list(folder.iterdir())


def test_a_broken_game_fails_alike_with_and_without_an_entry(
    game: dict[str, Any], folder: Path
) -> None:
    """A broken game raises the same error with and without a cache entry."""
    refused = game | {"pddl_problem": game["pddl_problem"][:2000]}
    accepted = game | {
        "pddl_problem": game["pddl_problem"].replace("(atLocation agent1", "(at agent1")
    }
    for broken, kept in ((refused, 0), (accepted, 1)):
        messages = []
        for _ in range(2):
            with pytest.raises(DataError, match="cannot load a game") as caught:
                GameEngine(broken)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert len(list(folder.iterdir())) == kept


def test_a_fresh_process_reads_what_another_kept(game: dict[str, Any], folder: Path) -> None:
    """A new process uses the cached translation, prints no warning and keeps its `sys.argv`."""
    fact = re.search(r"\(canContain [^()]*\)", game["pddl_problem"])
    assert fact
    game["pddl_problem"] = game["pddl_problem"].replace(fact.group(), fact.group() * 2, 1)
    _translate(game)
    code = (
        "import json, sys, fast_downward\n"
        "from env_wrappers.alfworld.engine import GameEngine\n"
        "def fail(*args, **kwargs): raise AssertionError('translated')\n"
        "fast_downward.pddl2sas = fail\n"
        "print(GameEngine(json.load(sys.stdin)).reset()[1])\n"
        "assert sys.argv[1:] == ['--mine', '3'], sys.argv\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--mine", "3"],
        input=json.dumps(game),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Your task is to" in done.stdout
    assert "Warning" not in done.stdout
