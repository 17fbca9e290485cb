"""`hgpo data demos`: the won episodes of scripted experts."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from env_wrappers import processes
from env_wrappers.alfworld.env import ALFWorldEnv
from env_wrappers.alfworld.games import find_games
from env_wrappers.alfworld.generator import GenerationSpec, generate
from env_wrappers.errors import DataError
from env_wrappers.webshop.generator import generate as generate_store
from env_wrappers.webshop.synthetic_products import CatalogueSpec
from hgpo_rllib.agent.parsing import parse_completion
from hgpo_rllib.environments.alfworld import explore, thoughts_for
from hgpo_rllib.environments.spec import OraclePlan, PlanFollower
from hgpo_rllib.settings.agent import AgentSettings
from hgpo_rllib.warmstart.demonstrations import demonstrate
from tests.unit.cli.command import Run, files

COMPACT = "agent.prompt=alfworld_compact"


class NoNoise:
    """Random numbers for the search only: no action is perturbed, and no move is random."""

    def __init__(self, rng: random.Random):
        self.choice = rng.choice

    def random(self) -> float:
        return 1.0


def read_demos(file: Path) -> list[dict[str, Any]]:
    """Return the records of a file of demonstrations."""
    content = file.read_bytes()
    text = gzip.decompress(content) if file.suffix == ".gz" else content
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def run_file(generated_games: Path, tmp_path: Path) -> Path:
    """Return a run file for the generated games."""
    return write_run_file(tmp_path / "runs" / "alfworld.yaml", generated_games)


def write_run_file(path: Path, data: Path, **env: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"env": {"data": str(data), **env}}))
    return path


@pytest.mark.parametrize("expert", ["oracle", "explorer", "planner"])
def test_demonstrations_win(
    hgpo: Run, run_file: Path, generated_games: Path, tmp_path: Path, expert: str
) -> None:
    """Each response is valid, its action is offered in its prompt, and the last one wins."""
    out = tmp_path / "demos.jsonl"
    limit = 1 if expert == "planner" else 3
    settings = [COMPACT, "env.train_split=valid_seen"]
    status, stdout, stderr = hgpo(
        "data", "demos", run_file, out, *settings, "--expert", expert, "--limit", limit
    )
    assert status == 0, stderr
    records = read_demos(out)
    games = find_games(generated_games, "valid_seen")[:limit]
    assert stdout == f"{out}: {len(records)} steps of {limit} tasks, 0 episodes left out\n"
    env = ALFWorldEnv(generated_games, split="valid_seen")
    for game in games:
        name = "/".join(game.parts[-3:-1])
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


@pytest.mark.parametrize("expert", ["oracle", "careful"])
def test_demonstrations_of_webshop_win(hgpo: Run, tmp_path: Path, expert: str) -> None:
    """The recorded actions buy the product, and the oracle's responses have no thoughts."""
    store, out = tmp_path / "store", tmp_path / "demos.jsonl"
    generate_store(store, CatalogueSpec(products=300, seed=1))
    options = {"env_id": "hgpo/WebShop-v0", "options": {"nouns": "words"}}
    run_file = write_run_file(tmp_path / "runs" / "webshop.yaml", store, **options)
    status, stdout, stderr = hgpo(
        *("data", "demos", run_file, out, "agent.prompt=webshop_compact"),
        *("--expert", expert, "--limit", 6),
    )
    assert status == 0, stderr
    records = read_demos(out)
    tasks = len({record["game"] for record in records})
    assert f"{len(records)} steps of {tasks} tasks, {6 - tasks} episodes left out" in stdout
    assert tasks >= 3
    env = gymnasium.make("hgpo/WebShop-v0", data=store, split="train", max_steps=50, nouns="words")
    count = env.get_wrapper_attr("num_tasks")
    won = 0
    for task in (index * count // 6 for index in range(6)):
        _, info = env.reset(seed=task)
        mine = [record for record in records if record["game"].endswith(f": {info['goal']}")]
        for record in mine:
            assert record["response"].startswith("<think></think>") == (expert == "oracle")
            info = env.step(parse_completion(record["response"]).action)[4]
        won += bool(mine) and info["won"]
    assert won == tasks


@pytest.mark.parametrize(("prompt", "memory"), [("alfworld_compact", 2), ("alfworld_full", 0)])
def test_the_explorer_is_the_one_of_the_warm_start(
    hgpo: Run, run_file: Path, generated_games: Path, tmp_path: Path, prompt: str, memory: int
) -> None:
    """Prompts and responses equal those of the warm start's demonstrations."""
    out = tmp_path / "demos.jsonl"
    settings = [f"agent.prompt={prompt}", f"agent.memory_length={memory}"]
    status, _, stderr = hgpo(
        *("data", "demos", run_file, out, *settings),
        *("--expert", "explorer", "--seed", 3, "--repeats", 2),
    )
    assert status == 0, stderr
    env = ALFWorldEnv(generated_games, split="train")
    agent = AgentSettings(prompt=prompt, memory_length=memory)
    expected = []
    for task, game in enumerate(env.games):
        name = "/".join(Path(game).parts[-3:-1])
        for repeat in range(2):
            rng = NoNoise(random.Random(f"3/{name}/{repeat}"))
            expected += demonstrate(env, task, explore, agent, 0.0, rng)
    assert [(r["prompt"], r["response"]) for r in read_demos(out)] == expected


def test_thoughts_of_a_plan_are_those_of_the_explorer(generated_games: Path) -> None:
    """A plan with the explorer's actions gets the explorer's thoughts."""
    env = ALFWorldEnv(generated_games, split="train")
    agent = AgentSettings(prompt="alfworld_compact")
    for task in range(env.num_tasks):
        rng = NoNoise(random.Random(0))
        examples = demonstrate(env, task, explore, agent, 0.0, rng)
        responses = [response for _, response in examples]
        thoughts = [r.removeprefix("<think>").partition("</think>")[0] for r in responses]
        assert thoughts_for([parse_completion(r).action for r in responses]) == thoughts


def test_equal_calls_write_equal_bytes(
    hgpo: Run, run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed output depends neither on the file's name nor on the time."""
    folder = tmp_path / "out"
    folder.mkdir()
    first, second, plain = (folder / name for name in ("a.gz", "b.jsonl.gz", "c.jsonl"))
    for second_of_day, out in enumerate((first, second, plain)):
        monkeypatch.setattr(gzip.time, "time", lambda now=second_of_day: now)
        assert hgpo("data", "demos", run_file, out)[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert read_demos(first) == read_demos(plain)
    assert len(list(folder.iterdir())) == 3


def test_games_that_the_expert_cannot_play_are_left_out(
    hgpo: Run, generated_games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names them. If none is left, an existing file does not change."""
    data, out = tmp_path / "data", tmp_path / "demos.jsonl"
    shutil.copytree(generated_games, data)
    run_file = write_run_file(tmp_path / "runs" / "alfworld.yaml", data)
    games = find_games(data, "train")
    content = json.loads(games[0].read_text())
    games[0].write_text(json.dumps(content | {"walkthrough": None}))
    content = json.loads(games[1].read_text())
    games[1].write_text(json.dumps(content | {"walkthrough": content["walkthrough"][:-1]}))
    status, stdout, stderr = hgpo("data", "demos", run_file, out)
    assert status == 0
    assert stdout.endswith("steps of 1 tasks, 2 episodes left out\n")
    left_out = [line for line in stderr.splitlines() if line.startswith("left out ")]
    assert [games[i].parent.name in left_out[i] for i in range(2)] == [True, True]
    assert "no recorded walkthrough" in left_out[0]
    assert "the plan ends before the goal is reached" in left_out[1]
    monkeypatch.setattr(processes, "_ITEMS_PER_WORKER", 100)  # stay in this process
    _, stdout, stderr = hgpo("data", "demos", run_file, out, "--repeats", "6")
    assert stdout.endswith("12 episodes left out\n")
    left_out = [line for line in stderr.splitlines() if line.startswith("left out ")]
    assert len(left_out) == 11
    assert left_out[-1] == "left out 2 more"

    content = json.loads(games[2].read_text())
    games[2].write_text(json.dumps(content | {"walkthrough": None}))
    before = files(tmp_path)
    status, stdout, stderr = hgpo("data", "demos", run_file, out)
    assert (status, stdout) == (2, "")
    assert "hgpo: no task could be demonstrated" in stderr.splitlines()[-1]
    assert files(tmp_path) == before


def test_an_episode_that_takes_too_long_is_left_out(
    hgpo: Run, run_file: Path, tmp_path: Path
) -> None:
    """If every episode is too long, the command fails and names the first."""
    status, stdout, stderr = hgpo("data", "demos", run_file, tmp_path / "x", "env.max_steps=2")
    assert (status, stdout) == (2, "")
    assert "the first because the expert oracle did not win in 2 steps" in stderr


def test_a_limit_takes_games_of_all_task_types(hgpo: Run, tmp_path: Path) -> None:
    """`--limit` does not take only the first games, which are all of one task type."""
    data, out = tmp_path / "data", tmp_path / "demos.jsonl"
    task_types = ("look_at_obj_in_light", "pick_and_place_simple")
    spec = GenerationSpec(7, {"train": 4}, task_types, ("bathroom", "bedroom"), 16)
    generate(data, spec)
    run_file = write_run_file(tmp_path / "runs" / "alfworld.yaml", data)
    assert hgpo("data", "demos", run_file, out, "--limit", 2)[0] == 0
    games = sorted({(record["task_type"], record["game"]) for record in read_demos(out)})
    assert [task_type for task_type, _ in games] == list(task_types)


def test_data_are_generated(hgpo: Run, tmp_path: Path) -> None:
    """Without data in the run file, they are generated where `hgpo train` generates them."""
    games = [f"games.{split}={count}" for split, count in (("train", 2), ("valid_seen", 1))]
    settings = [
        *games,
        "games.valid_unseen=1",
        "games.max_receptacles=12",
        f"cache={tmp_path}/data",
    ]
    out = tmp_path / "demos.jsonl"
    status, stdout, stderr = hgpo("data", "demos", "alfworld_pocket", out, *settings)
    assert status == 0, stderr
    assert stdout.endswith("steps of 2 tasks, 0 episodes left out\n")
    (data,) = (tmp_path / "data").glob("alfworld-games-*")
    assert len(find_games(data, "train")) == 2


def test_an_unknown_expert_is_refused_before_data_are_generated(hgpo: Run, tmp_path: Path) -> None:
    settings = [f"cache={tmp_path / 'data'}", "--expert", "guru"]
    out = tmp_path / "out.jsonl"
    line = hgpo.refusal("data", "demos", "alfworld_pocket", out, *settings)
    assert "unknown 'guru', choose from oracle, explorer, planner" in line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--expert", "guru"), "unknown 'guru', choose from oracle, explorer, planner"),
        (("agent.prompt=nix",), "no prompt template 'nix'"),
        (("agent.prompt=wrong.jinja",), "wrong.jinja: unknown variable mood; available"),
        (("agent.prompt=attribute.jinja",), "attribute.jinja: UndefinedError: 'str object' has no"),
        (("env.train_split=nix",), "nix is not a directory"),
        (("agent.memory_length=-1",), "agent.memory_length"),
    ],
)
def test_bad_input(
    hgpo: Run,
    run_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.jinja").write_text("{% if step_count > 5 %}{{ mood }}{% endif %}")
    Path("attribute.jinja").write_text("{{ goal.mood }}")
    assert named in hgpo.refusal("data", "demos", run_file, "x", *options)


def test_a_limit_is_at_least_one(hgpo: Run, run_file: Path, tmp_path: Path) -> None:
    for option in ("--limit", "--repeats"):
        status, _, stderr = hgpo("data", "demos", run_file, tmp_path / "x", option, 0)
        assert status == 2
        assert option in stderr
        assert "greater than or equal to 1" in stderr


def test_a_plan_without_actions_says_why() -> None:
    plan = OraclePlan([], fallback_reason="no search for words of the instruction finds B0")
    with pytest.raises(DataError, match="finds B0"):
        PlanFollower(plan).act("a page", ["search"], None)


def test_an_environment_of_a_mixture(hgpo: Run, tmp_path: Path) -> None:
    """The experts are those of the environment whose split is played."""
    out = tmp_path / "demos.jsonl"
    settings = ("mixture_pocket", out, "env.train_split=textcraft.train", "--limit", 1)
    status, _, stderr = hgpo("data", "demos", *settings, "--expert", "guru")
    assert status == 2
    assert "oracle, careful, wasteful" in stderr
    assert not out.exists()
    assert hgpo("data", "demos", *settings, "--expert", "careful")[0] == 0
    assert len({demo["game"] for demo in read_demos(out)}) == 1
