"""`hgpo play …` as a command: games played through a pipe, and recorded episodes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.planner import recorded_plan
from env_wrappers.textcraft.env import TextCraftEnv
from hgpo_rllib.settings.env import EnvSettings
from tests.unit.cli.command import Run
from tests.unit.env_wrappers.textcraft.textcraft_data import write_recipes
from tests.unit.reporting.reporting_rows import EPISODES, write_jsonl

STEPS = EnvSettings().max_steps
PLAY = ("play", "alfworld", "--split", "train")


def step(**changes: Any) -> dict[str, Any]:
    """Return a recorded step."""
    plain = {
        "time": 0,
        "anchor": "You see shelf 1.",
        "completion": "<think>look there</think><action>go to shelf 1</action>",
        "action": "go to shelf 1",
        "is_valid": True,
        "inadmissible": False,
        "reward": 0.0,
        "step_return": 9.5,
        "advantage": -0.25,
    }
    return plain | changes


def write_episode(file: Path, *steps: dict[str, Any], **changes: Any) -> Path:
    """Write a file with one episode."""
    write_jsonl(file, [EPISODES[0] | {"steps": list(steps)} | changes])
    return file


class TestPlaying:
    def test_winning_by_numbers_and_commands(self, hgpo: Run, generated_games: Path) -> None:
        """Every other step is given by its number in the list, the others as commands."""
        game = find_games(generated_games, "train")[2]
        plan, answers = recorded_plan(game), []
        for number, command in enumerate(plan):
            answers.append(command)
            if number % 2 == 0:
                status, stdout, _ = hgpo(
                    *PLAY,
                    "--data",
                    generated_games,
                    "--game",
                    2,
                    stdin="\n".join(answers[:-1]),
                )
                offered = stdout.split("steps left > ")[-2]
                answers[-1] = next(
                    line.split(command)[0].split()[-1]
                    for line in offered.splitlines()
                    if f" {command}" in line
                )
                assert answers[-1].isdecimal()
        status, stdout, stderr = hgpo(
            *PLAY, "--data", generated_games, "--game", 2, stdin="\n".join(answers)
        )
        assert (status, stderr) == (0, "")
        assert stdout.endswith(f"\nWon in {len(plan)} steps.\n")
        assert "Your task is to: " in stdout
        assert f"{STEPS} steps left > {answers[0]}\n" in stdout

    def test_losing_by_steps(self, hgpo: Run, generated_games: Path) -> None:
        """An unknown command counts as a step; an empty or a wrong number does not."""
        answers = ["", "0", "99", *["dance"] * (STEPS - 1), "", "[b]", "look"]
        status, stdout, _ = hgpo(*PLAY, "--data", generated_games, stdin="\n".join(answers))
        assert status == 0
        assert stdout.endswith(f"Lost: the goal is not reached after {STEPS} steps.\n")
        assert stdout.count(f"{STEPS} steps left > ") == 4
        assert stdout.count("There is no action ") == 2
        assert stdout.count("Nothing happens.") == STEPS
        assert "1 step left > [b]\n" in stdout

    @pytest.mark.parametrize("stdin", ["look\nquit\nlook\n", "look\n"], ids=["quit", "end of pipe"])
    def test_leaving(self, hgpo: Run, generated_games: Path, stdin: str) -> None:
        status, stdout, _ = hgpo(*PLAY, "--data", generated_games, stdin=stdin)
        assert status == 0
        assert stdout.endswith("Lost: you left after 1 step.\n")

    def test_which_game(
        self, hgpo: Run, generated_games: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`--game` is the index in the split; without `--split`, that of evaluations is used."""
        options = ("--split", "valid_seen", "--game", "1")
        shown = hgpo("play", "alfworld", "--data", generated_games, *options)[1]
        assert "Your task is to: " in shown
        assert hgpo("play", "alfworld", "--data", generated_games, "--game", "1")[1] == shown
        assert hgpo("play", "alfworld", "--data", generated_games)[1] != shown
        monkeypatch.setenv("ALFWORLD_DATA", str(generated_games))
        assert hgpo("play", "alfworld", *options)[1] == shown

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (("--game", "3"), "--game 3: there are 3 in train"),
            (("--split", "nix"), "nix is not a directory"),
            (("env.options.nix=1",), "unknown option env.options.nix"),
        ],
    )
    def test_bad_input(
        self, hgpo: Run, generated_games: Path, options: tuple[str, ...], named: str
    ) -> None:
        assert named in hgpo.refusal(*PLAY, "--data", generated_games, *options)


def test_crafting(hgpo: Run, tmp_path: Path) -> None:
    data = write_recipes(tmp_path / "data")
    goal = TextCraftEnv(data, "train").goals.index("minecraft:lever")
    options = ("play", "textcraft", "--data", data, "--split", "train", "--game", goal)
    actions = ["get 2 bamboo", "craft 1 stick using 2 bamboo", "get 1 cobblestone"]
    answers = [*actions, "dance", "craft 1 lever using 1 stick, 1 cobblestone"]
    status, stdout, stderr = hgpo(*options, stdin="\n".join(answers))
    assert (status, stderr) == (0, "")
    assert "Goal: craft lever." in stdout
    assert "Could not execute dance" in stdout
    assert stdout.endswith("\nWon in 5 steps.\n")
    status, _, stderr = hgpo("play", "textcraft", "--data", tmp_path)
    assert status == 2
    assert "holds no recipes" in stderr


class TestEpisodes:
    def test_a_recorded_episode(self, hgpo: Run, tmp_path: Path) -> None:
        """Each turn is shown with its thought, action, reward, return and advantage."""
        file = tmp_path / "iteration_0001.jsonl.gz"
        write_jsonl(file, EPISODES)
        status, stdout, stderr = hgpo("play", "episode", file, "--index", 1)
        assert (status, stderr) == (0, "")
        for time, advantage in enumerate(("1.000", "0.750", "1.000")):
            turn = stdout.partition(f"step {time + 1} of 3")[2].partition("step ")[0]
            assert f"You see shelf {time}." in turn
            assert "thought: go\n" in turn
            mark = "inadmissible" if time == 1 else "valid"
            assert f"action:  go to shelf {time}  [{mark}]\n" in turn
            assert f"reward 0.000, return 9.500, advantage {advantage}\n" in turn
        assert "game: game-1\n" in stdout
        assert "member 1" in stdout
        assert stdout.endswith("\nWon in 3 steps.\n")
        assert hgpo("play", "episode", file, "--index", 3)[1].endswith("\nLost in 2 steps.\n")

    @pytest.mark.parametrize(
        ("options", "named"),
        [(("--port", "0"), "add --web"), (("--web", "--step-by-step"), "remove it")],
    )
    def test_options_that_exclude_each_other(
        self, hgpo: Run, tmp_path: Path, options: tuple[str, ...], named: str
    ) -> None:
        status, stdout, stderr = hgpo("play", "episode", tmp_path / "x.jsonl", *options)
        assert (status, stdout) == (2, "")
        assert named in stderr

    def test_markup_and_control_characters_are_text(self, hgpo: Run, tmp_path: Path) -> None:
        """Markup and control characters in an episode are printed as text."""
        file = write_episode(
            tmp_path / "x.jsonl",
            step(
                anchor="see [bold]this[/bold] :smile: \x1b[31m",
                completion="no tags [/red] \x1b]0;title\x07",
                action="[link=x]go[/link]",
                is_valid=False,
                inadmissible=True,
            ),
            goal="[blink]put[/blink] it",
        )
        status, stdout, _ = hgpo("play", "episode", file)
        assert status == 0
        assert "see [bold]this[/bold] :smile: \\x1b[31m\n" in stdout
        assert "thought: no tags [/red] \\x1b]0;title\\x07\n" in stdout
        assert "action:  [link=x]go[/link]  [invalid, inadmissible]\n" in stdout
        assert "task: [blink]put[/blink] it\n" in stdout
        assert "\x1b" not in stdout

    def test_step_by_step(self, hgpo: Run, tmp_path: Path) -> None:
        """Each line of input shows one turn; "quit" and the end of input stop it."""
        file = write_episode(tmp_path / "x.jsonl", *(step(time=t) for t in range(3)))
        options = ("play", "episode", file, "--step-by-step")
        for stdin, turns in (("", 0), ("\n\n", 2), ("\nquit\n\n", 1), ("\n\n\n", 3)):
            status, stdout, _ = hgpo(*options, stdin=stdin)
            assert status == 0
            assert stdout.count("action:") == turns
            assert ("in 3 steps" in stdout) == (turns == 3)

    def test_a_file_still_being_written(self, hgpo: Run, tmp_path: Path) -> None:
        """Complete episodes can be read, and missing values are left out."""
        file = tmp_path / "x.jsonl"
        short = step(advantage=None)
        del short["reward"]
        write_episode(file, short)
        file.write_text(file.read_text() + '{"format": "hgpo-epi')
        status, stdout, _ = hgpo("play", "episode", file)
        assert status == 0
        assert "\nreturn 9.500, advantage n/a" in stdout

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (b"", "no episodes in it"),
            (b"{\n{\n", "line 1 is not a JSON object"),
            (
                json.dumps({"format": "hgpo-episode-9"}).encode(),
                "'hgpo-episode-9' is not hgpo-episode-1 or hgpo-evaluated-episode-1",
            ),
            (json.dumps({"format": "hgpo-episode-1"}).encode(), "without a list of steps"),
            (json.dumps({"format": "hgpo-episode-1", "steps": [1]}).encode(), "without a list of"),
        ],
    )
    def test_files_that_hold_something_else(
        self, hgpo: Run, tmp_path: Path, content: bytes, named: str
    ) -> None:
        (tmp_path / "x.jsonl").write_bytes(content)
        assert named in hgpo.refusal("play", "episode", tmp_path / "x.jsonl")

    def test_damaged_or_missing_files(self, hgpo: Run, tmp_path: Path) -> None:
        packed = bytearray(gzip.compress(json.dumps(EPISODES[0]).encode()))
        packed[30:60] = b"\xff" * 30
        (tmp_path / "damaged.gz").write_bytes(packed)
        (tmp_path / "plain.gz").write_text("{}")
        for name, named in (
            ("damaged.gz", "cannot be read"),
            ("plain.gz", "not a gzip file"),
            ("nix.gz", "no such file"),
            (".", "no such file"),
        ):
            assert named in hgpo.refusal("play", "episode", tmp_path / name)

    def test_an_index_out_of_range(self, hgpo: Run, tmp_path: Path) -> None:
        file = tmp_path / "x.jsonl"
        write_jsonl(file, EPISODES)
        for index in (4, -1):
            status, _, stderr = hgpo("play", "episode", file, "--index", index)
            assert status == 2
            assert "there are 4 (0 is the first)" in stderr
