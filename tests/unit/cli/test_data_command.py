"""`hgpo data …` as a command: what is written, what is said, exit codes."""

import gzip
import io
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.alfworld.download import DownloadError, download
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from env_wrappers.datasets import MANIFEST
from hgpo_rllib.agent import parse_completion
from hgpo_rllib.cli.main import main
from hgpo_rllib.environments.alfworld import GameGenerator
from hgpo_rllib.play import demos
from hgpo_rllib.play.experts import thoughts_for
from hgpo_rllib.warmstart.demonstrations import demonstrate

FEW = (
    *("--train", "2", "--valid-seen", "1", "--valid-unseen", "0", "--test", "1"),
    *("--rooms", "bathroom, bedroom", "--task-types", "pick_and_place_simple"),
    *("--max-receptacles", "16", "--seed", "7"),
)
FEW_SPEC = GenerationSpec(
    seed=7,
    splits={"train": 2, "valid_seen": 1, "valid_unseen": 0, "test": 1},
    task_types=("pick_and_place_simple",),
    rooms=("bathroom", "bedroom"),
    max_receptacles=16,
)
FAKE_SCRIPT = """
import sys
from pathlib import Path

print("Downloading games.zip:  50%|#####     | 1/2", end="\\r", file=sys.stderr, flush=True)
print("alfred.pddl already exists")
if "{outcome}" == "fails":
    from urllib.error import URLError
    raise URLError("HTTPSConnectionPool(host='packages.internal', port=3128): no route")
if "{outcome}" == "stops":
    sys.exit(3)
Path(sys.argv[sys.argv.index("--data-dir") + 1], "json_2.1.1").mkdir()
"""


class NoNoise:
    """Random numbers for the search alone: no action is perturbed, no move is random."""

    def __init__(self, rng: random.Random):
        self.choice = rng.choice

    def random(self) -> float:
        return 1.0


class Run:
    """One call of `hgpo`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object, stdin: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # or main() would set it for good
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *self._capsys.readouterr()


@pytest.fixture
def hgpo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the command."""
    return Run(capsys, monkeypatch)


def files(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and time of change of all files."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in found}


def read_demos(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file of demonstrations."""
    content = file.read_bytes()
    text = gzip.decompress(content) if file.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


class TestGenerate:
    def test_what_is_generated(self, hgpo: Run, tmp_path: Path) -> None:
        """The generator's own bytes; a second call leaves them alone, another spec is refused."""
        out = tmp_path / "games"
        status, stdout, stderr = hgpo("data", "generate", "alfworld", out, *FEW, "--workers", 1)
        assert (status, stdout) == (0, f"{out}: 4 games\n")
        assert "generating games: 4/4" in stderr
        generate(tmp_path / "same", FEW_SPEC)
        before = files(out)
        same = files(tmp_path / "same")
        assert {k: v[0] for k, v in before.items()} == {k: v[0] for k, v in same.items()}

        status, stdout, stderr = hgpo("data", "generate", "alfworld", out, *FEW)
        assert (status, stdout, stderr) == (0, f"{out}: these 4 games already exist\n", "")
        status, stdout, stderr = hgpo("data", "generate", "alfworld", out, *FEW, "--seed", "8")
        assert (status, stdout) == (2, "")
        (line,) = stderr.splitlines()
        assert "another spec" in line
        assert files(out) == before

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (("--rooms", "attic"), "unknown room 'attic'"),
            (("--rooms", ","), "no room given"),
            (("--task-types", "fold"), "unknown task type 'fold'"),
            (("--train", "-1"), "must not be negative"),
            (("--seed", "-1"), "the seed must be at least 0"),
        ],
    )
    def test_bad_input(
        self, hgpo: Run, tmp_path: Path, options: tuple[str, ...], named: str
    ) -> None:
        status, stdout, stderr = hgpo("data", "generate", "alfworld", tmp_path / "x", *options)
        assert (status, stdout) == (2, "")
        (line,) = stderr.splitlines()
        assert line.startswith("hgpo: ")
        assert named in line
        assert list(tmp_path.iterdir()) == []

    def test_a_place_that_cannot_be_written(self, hgpo: Run, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        out = tmp_path / "file/games"
        status, _, stderr = hgpo("data", "generate", "alfworld", out, *FEW)
        assert (status, stderr) == (2, f"hgpo: cannot write {out}: Not a directory\n")

    def test_the_defaults_are_those_of_training(self, tmp_path: Path) -> None:
        """So that both make the same games."""
        import inspect

        from hgpo_rllib.cli.data import generate_alfworld
        from hgpo_rllib.settings.generated import GamesSettings

        given = {n: p.default for n, p in inspect.signature(generate_alfworld).parameters.items()}
        for name, value in GamesSettings().model_dump().items():
            assert given[name] == (",".join(value) if name == "rooms" else value)


class TestCheck:
    def test_sound_games_as_json(self, hgpo: Run, generated_games: Path) -> None:
        """One object and nothing else; the directory is $ALFWORLD_DATA's if none is given."""
        status, stdout, _ = hgpo("data", "check", "alfworld", generated_games, "--json", "--replay")
        assert status == 0
        found = json.loads(stdout)
        row = {"games": 1, "replayed": 1, "skipped": 0, "broken": 0}
        assert found["kind"] == "generated"
        assert found["splits"]["valid_unseen"]["look_at_obj_in_light"] == row
        assert sorted(found["splits"]) == ["train", "valid_seen", "valid_unseen"]
        assert found["broken"] == []

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
        status, stdout, _ = hgpo("data", "check", "alfworld", data, "--json")
        assert status == 1
        (broken,) = json.loads(stdout)["broken"]
        assert broken["file"] == name
        assert broken["reason"].startswith("no game: Invalid JSON")

    def test_no_tree(self, hgpo: Run, tmp_path: Path) -> None:
        status, stdout, stderr = hgpo("data", "check", "alfworld", tmp_path, "--json")
        assert (status, stdout) == (2, "")
        (line,) = stderr.splitlines()
        assert "is not a directory" in line
        assert "hgpo data generate alfworld" in line


class TestDownload:
    def test_without_a_network(
        self, hgpo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One line: what was tried, and how games that are there already are named."""
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing answers there
        status, stdout, stderr = hgpo("data", "download", "alfworld", tmp_path)
        assert (status, stdout) == (1, "")
        (line,) = stderr.splitlines()
        for part in (
            "alfworld-download",
            "github.com/alfworld",
            "json_2.1.1/<split>/<task>/<trial>/game.tw-pddl",
            "ALFWORLD_DATA",
        ):
            assert part in line
        assert "127.0.0.1" not in line
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("outcome", "reason"), [("works", ""), ("fails", "URLError"), ("stops", "exit code 3")]
    )
    def test_the_script(self, tmp_path: Path, outcome: str, reason: str) -> None:
        """What it prints is passed on, but no traceback and no address."""
        script = tmp_path / "alfworld-download"
        script.write_text(FAKE_SCRIPT.replace("{outcome}", outcome))
        lines: list[str] = []
        here = script.as_uri()
        if outcome == "works":
            download(tmp_path, lines.append, releases=here, script=script)
            assert (tmp_path / "json_2.1.1").is_dir()
        else:
            with pytest.raises(DownloadError, match=rf"stopped with {reason}$"):
                download(tmp_path, lines.append, releases=here, script=script)
        assert sorted(lines)[-1] == "alfred.pddl already exists"
        assert any(line.startswith("Downloading games.zip:  50%|") for line in lines)
        assert "packages.internal" not in str(lines)

    def test_without_the_script(self, tmp_path: Path) -> None:
        with pytest.raises(DownloadError, match="there is no alfworld-download"):
            download(tmp_path, lambda line: None, script=tmp_path / "alfworld-download")


class TestDemos:
    @pytest.mark.parametrize("expert", ["oracle", "explorer", "planner"])
    def test_demonstrations_win(
        self, hgpo: Run, generated_games: Path, tmp_path: Path, expert: str
    ) -> None:
        """Each response is valid, its action is offered in its prompt, and the last one wins."""
        out = tmp_path / "demos.jsonl"
        limit = 1 if expert == "planner" else 3
        status, stdout, stderr = hgpo(
            *("data", "demos", "alfworld", generated_games, out),
            *("--expert", expert, "--limit", limit, "--split", "valid_seen"),
        )
        assert status == 0, stderr
        records = read_demos(out)
        games = find_games(generated_games, "valid_seen")[:limit]
        assert stdout == f"{out}: {len(records)} steps of {limit} games, 0 games left out\n"
        env = ALFWorldEnv(generated_games, split="valid_seen")
        for game in games:
            name = game.relative_to(generated_games).as_posix()
            mine = [record for record in records if record["game"] == name]
            _, info = env.reset(options={"game": game})
            for time, record in enumerate(mine):
                parsed = parse_completion(record["response"])
                assert parsed.is_valid
                assert parsed.action in info["admissible_actions"]
                assert parsed.action in record["prompt"]
                assert f"\nStep {time + 1}\n" in record["prompt"]
                assert list(record) == [
                    *("format", "game", "task_type", "goal", "time", "prompt", "response")
                ]
                assert (record["format"], record["time"]) == ("hgpo-demo-1", time)
                assert (record["task_type"], record["goal"]) == (info["task_type"], info["goal"])
                _, _, won, _, info = env.step(parsed.action)
                assert won == (time == len(mine) - 1)

    @pytest.mark.parametrize(("prompt", "memory"), [("alfworld_compact", 2), ("alfworld_full", 0)])
    def test_the_explorer_is_the_one_of_the_warm_start(
        self, hgpo: Run, generated_games: Path, tmp_path: Path, prompt: str, memory: int
    ) -> None:
        """Prompts, thoughts and actions are the existing demonstrations', to the letter."""
        out = tmp_path / "demos.jsonl"
        options = ("--expert", "explorer", "--prompt", prompt, "--memory-length", memory)
        status, _, stderr = hgpo(
            "data", "demos", "alfworld", generated_games, out, *options, "--seed", 3
        )
        assert status == 0, stderr
        env = ALFWorldEnv(generated_games, split="train")
        expected = []
        for task, game in enumerate(env.games):
            rng = NoNoise(random.Random(f"3/{Path(game).parent.name}/0"))
            expected += demonstrate(env, task, GameGenerator.make_expert, prompt, memory, 0.0, rng)
        assert [(r["prompt"], r["response"]) for r in read_demos(out)] == expected

    def test_thoughts_of_a_plan_are_those_of_the_explorer(self, generated_games: Path) -> None:
        """Given the actions that the explorer took."""
        env = ALFWorldEnv(generated_games, split="train")
        player = GameGenerator.make_expert
        for task in range(env.num_tasks):
            rng = NoNoise(random.Random(0))
            examples = demonstrate(env, task, player, "alfworld_compact", 2, 0.0, rng)
            responses = [response for _, response in examples]
            thoughts = [r.removeprefix("<think>").partition("</think>")[0] for r in responses]
            assert thoughts_for([parse_completion(r).action for r in responses]) == thoughts

    def test_equal_calls_write_equal_bytes(
        self, hgpo: Run, generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compressed too, whatever the file is called, and at any time."""
        first, second, plain = (tmp_path / name for name in ("a.gz", "b.jsonl.gz", "c.jsonl"))
        for second_of_day, out in enumerate((first, second, plain)):
            monkeypatch.setattr(gzip.time, "time", lambda now=second_of_day: now)
            assert hgpo("data", "demos", "alfworld", generated_games, out)[0] == 0
        assert first.read_bytes() == second.read_bytes()
        assert read_demos(first) == read_demos(plain)
        assert len(list(tmp_path.iterdir())) == 3

    def test_games_that_the_expert_cannot_play_are_left_out(
        self, hgpo: Run, generated_games: Path, tmp_path: Path
    ) -> None:
        """And named; where none is left, a file that is there stays as it is."""
        data, out = tmp_path / "data", tmp_path / "demos.jsonl"
        shutil.copytree(generated_games, data)
        games = find_games(data, "train")
        content = json.loads(games[0].read_text())
        games[0].write_text(json.dumps(content | {"walkthrough": None}))
        content = json.loads(games[1].read_text())
        games[1].write_text(json.dumps(content | {"walkthrough": content["walkthrough"][:-1]}))
        status, stdout, stderr = hgpo("data", "demos", "alfworld", data, out)
        assert status == 0
        assert stdout.endswith("steps of 1 games, 2 games left out\n")
        left_out = [line for line in stderr.splitlines() if line.startswith("left out ")]
        assert [games[i].parent.name in left_out[i] for i in range(2)] == [True, True]
        assert "no recorded walkthrough" in left_out[0]
        assert "the plan ends before the goal is reached" in left_out[1]

        content = json.loads(games[2].read_text())
        games[2].write_text(json.dumps(content | {"walkthrough": None}))
        before = files(tmp_path)
        status, stdout, stderr = hgpo("data", "demos", "alfworld", data, out)
        assert (status, stdout) == (2, "")
        assert "hgpo: no game could be demonstrated" in stderr.splitlines()[-1]
        assert files(tmp_path) == before

    def test_an_episode_that_takes_too_long_is_left_out(
        self, generated_games: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        env = ALFWorldEnv(generated_games, max_steps=2)
        monkeypatch.setattr(demos, "_environment", lambda *arguments: env)
        spec = demos.DemoSpec(
            generated_games, "train", "explorer", "alfworld_compact", 2, None, 0, 1.0
        )
        demo = demos.demonstrate_game(spec, env.games[0])
        assert demo.records == ()
        assert demo.left_out == "the explorer did not win in 2 steps"

    def test_a_limit_takes_games_of_all_families(self, hgpo: Run, tmp_path: Path) -> None:
        """The sorted list begins with one family."""
        data, out = tmp_path / "data", tmp_path / "demos.jsonl"
        families = ("look_at_obj_in_light", "pick_and_place_simple")
        generate(data, replace(FEW_SPEC, splits={"train": 4}, task_types=families))
        assert hgpo("data", "demos", "alfworld", data, out, "--limit", 2)[0] == 0
        games = sorted({(record["task_type"], record["game"]) for record in read_demos(out)})
        assert [family for family, _ in games] == list(families)

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (("--expert", "guru"), "unknown 'guru', choose from oracle, explorer, planner"),
            (("--prompt", "nix"), "no prompt template 'nix'"),
            (("--prompt", "wrong.jinja"), "--prompt: 'mood' is undefined"),
            (("--split", "nix"), "nix is not a directory"),
            (("--limit", "0"), "--limit at least 1"),
            (("--memory-length", "-1"), "--memory-length must be at least 0"),
            (("--planner-seconds", "0"), "--planner-seconds above 0"),
        ],
    )
    def test_bad_input(
        self,
        hgpo: Run,
        generated_games: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        options: tuple[str, ...],
        named: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("wrong.jinja").write_text("{{ mood }}")
        status, stdout, stderr = hgpo("data", "demos", "alfworld", generated_games, "x", *options)
        assert (status, stdout) == (2, "")
        (line,) = stderr.splitlines()
        assert named in line
        assert [path.name for path in tmp_path.iterdir()] == ["wrong.jinja"]

    def test_a_file_that_cannot_be_written(
        self, hgpo: Run, generated_games: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "no/demos.jsonl"
        status, _, stderr = hgpo("data", "demos", "alfworld", generated_games, out)
        assert status == 2
        assert stderr == f"hgpo: cannot write {out}: No such file or directory\n"
