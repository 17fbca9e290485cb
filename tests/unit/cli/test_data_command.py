"""`hgpo data …` as a command: files, output, and exit codes."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from env_wrappers.datasets import MANIFEST
from hgpo_rllib.results import export
from tests.unit.cli.command import Run, files

FEW = (
    *("games.train=2", "games.valid_seen=1", "games.valid_unseen=0", "games.test=1"),
    *("games.rooms=[bathroom, bedroom]", "games.task_types=[pick_and_place_simple]"),
    *("games.max_receptacles=16", "games.seed=7"),
)
FEW_SPEC = GenerationSpec(
    seed=7,
    splits={"train": 2, "valid_seen": 1, "valid_unseen": 0, "test": 1},
    task_types=("pick_and_place_simple",),
    rooms=("bathroom", "bedroom"),
    max_receptacles=16,
)


class TestGenerate:
    def test_what_is_generated(self, hgpo: Run, tmp_path: Path) -> None:
        """Files equal the generator's; a second call changes nothing, another spec fails."""
        out = tmp_path / "games"
        status, stdout, stderr = hgpo("data", "generate", "alfworld", out, *FEW)
        assert (status, stdout) == (0, f"{out}: generated\n")
        assert "generating data: 4/4" in stderr
        generate(tmp_path / "same", FEW_SPEC)
        before = files(out)
        same = files(tmp_path / "same")
        assert {k: v[0] for k, v in before.items()} == {k: v[0] for k, v in same.items()}

        status, stdout, stderr = hgpo("data", "generate", "alfworld", out, *FEW)
        assert (status, stdout, stderr) == (0, f"{out}: these data already exist\n", "")
        line = hgpo.refusal("data", "generate", "alfworld", out, *FEW, "games.seed=8")
        assert "another spec" in line
        assert files(out) == before

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (("alfworld", "games.rooms=[attic]"), "games.rooms.0: "),
            (("alfworld", "games.rooms=[]"), "no room given"),
            (("alfworld", "games.task_types=[fold]"), "unknown task type 'fold'"),
            (("alfworld", "games.train=-1"), "games.train: "),
            (("alfworld", "games.seed=-1"), "games.seed: "),
            (("alfworld", "env.data=here"), "alfworld: no data are generated"),
            (("webshop", "store.products=0"), "greater than or equal to 1"),
            (("webshop", "store.lookalikes=9"), "less than or equal to 6"),
            (("webshop", "store.attributes=0"), "greater than or equal to 3"),
            (("webshop", "store.human=2"), "less than or equal to 1"),
            (("webshop", "store.seed=-1"), "greater than or equal to 0"),
            (("textcraft",), "textcraft: no data are generated"),
            (("chess",), "chess"),
        ],
    )
    def test_bad_input(self, hgpo: Run, tmp_path: Path, words: tuple[str, ...], named: str) -> None:
        env, *settings = words
        assert named in hgpo.refusal("data", "generate", env, tmp_path / "x", *settings)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("env", ["alfworld", "webshop"])
    def test_a_place_that_cannot_be_written(self, hgpo: Run, tmp_path: Path, env: str) -> None:
        (tmp_path / "file").touch()
        out = tmp_path / "file/data"
        status, _, stderr = hgpo("data", "generate", env, out)
        assert (status, stderr) == (2, f"hgpo: cannot write {out}: Not a directory\n")


class TestCheck:
    def test_sound_games(self, hgpo: Run, generated_games: Path) -> None:
        """The table counts all, replayed, skipped and broken games by split and task type."""
        status, stdout, _ = hgpo("data", "check", "alfworld", generated_games, "--replay")
        assert status == 0
        assert stdout.startswith(f"{generated_games} (generated)\n")
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stdout.splitlines()]
        assert ["valid_unseen", "look_at_obj_in_light", "1", "1", "0", "0"] in cells
        assert {row[0] for row in cells if row} == {"train", "valid_seen", "valid_unseen", "all"}
        assert "broken: " not in stdout

    def test_broken_games_are_listed(
        self, hgpo: Run, generated_games: Path, tmp_path: Path
    ) -> None:
        data = tmp_path / "[red]data"
        shutil.copytree(generated_games, data)
        (data / MANIFEST).unlink()
        game = find_games(data, "train")[0]
        game.write_text("{")
        name = game.relative_to(data).as_posix()
        status, stdout, _ = hgpo("data", "check", "alfworld", data)
        assert status == 1
        (line,) = [line for line in stdout.splitlines() if line.startswith("broken: ")]
        assert line.startswith(f"broken: {name}: no game: Invalid JSON")
        assert "[red]data (official)" in stdout
        assert [line.split()[-2] for line in stdout.splitlines() if "│ all" in line] == ["1"]

    def test_no_tree(self, hgpo: Run, tmp_path: Path) -> None:
        line = hgpo.refusal("data", "check", "alfworld", tmp_path)
        assert "is not a directory" in line
        assert "hgpo data generate alfworld" in line


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (errno.ENOSPC, 1, "hgpo: No space left on device: free some space"),
        (errno.EROFS, 2, "cannot write {out}: Read-only file system"),
    ],
)
def test_an_export_that_cannot_be_written(
    hgpo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, status: int, said: str
) -> None:
    """A full disk is a failure; a path that cannot be written is bad input."""

    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(export, "export_steps", fail)
    out = tmp_path / "steps.parquet"
    found, stdout, stderr = hgpo("data", "export", tmp_path, out)
    assert (found, stdout) == (status, "")
    assert said.format(out=out) in stderr
