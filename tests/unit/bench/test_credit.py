"""`hgpo bench credit`: sampling, shared states, continuation, rejected input, and output."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from env_wrappers.errors import DataError
from hgpo_rllib.advantages import find_estimator
from hgpo_rllib.advantages.estimators import ESTIMATORS, NEEDS_CRITIC, STRATA, TEACHERS
from hgpo_rllib.agent import Turn
from hgpo_rllib.agent.templates import load_template
from hgpo_rllib.bench import credit, fidelity
from hgpo_rllib.bench.branching import AgentState, MeanReturn
from hgpo_rllib.bench.credit import (
    OnValues,
    Plan,
    agent_states,
    bench_credit,
    read_steps,
    sample_rows,
    sampled_columns,
)
from hgpo_rllib.bench.fidelity import Result, load_result
from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.rollout.scoring import score
from hgpo_rllib.rollout.trajectory import Step, Trajectory
from hgpo_rllib.settings.algorithm import AlgorithmSettings


class NoSnapshots(gymnasium.Env):
    """An environment without snapshots."""

    def __init__(self, split: str, data: str | None, max_steps: int):
        pass


gymnasium.register("NoSnapshots-v0", entry_point=NoSnapshots)

PLAN = Plan(groups=3, steps=12, branches=4)


def trajectory(group: int, member: int, rooms: list[str], won: bool) -> Trajectory:
    """Return an episode that visits rooms; its prompts show the last two."""
    shown = [rooms[max(0, t - 1) : t + 1] for t in range(len(rooms))]
    ids = [np.array([*map(ord, names)]) for names in shown]
    steps = [
        Step(
            Turn(
                room,
                f"to {after}",
                "text",
                t + 1,
                True,
                prompt_ids=ids[t],
                response_ids=ids[t],
                behavior_logp=np.full(len(ids[t]), -0.1 * (t + 1), np.float32),
            ),
            after,
            10.0 * (won and t == len(rooms) - 1),
            terminated=t == len(rooms) - 1,
            truncated=False,
            info={"state_hash": after, "won": won and t == len(rooms) - 1},
            env_s=0.0,
        )
        for t, (room, after) in enumerate(zip(rooms, [*rooms[1:], "z"], strict=True))
    ]
    info = {"state_hash": rooms[0], "won": False}
    return Trajectory(info, steps, group=f"0/train/{group}", member=member)


@pytest.fixture
def played() -> list[Trajectory]:
    """Return three groups of four episodes."""
    paths = [("abc", True), ("abc", False), ("adc", True), ("aabbc", False)]
    return [
        trajectory(group, member, list(path), won if group else not won)
        for group in range(3)
        for member, (path, won) in enumerate(paths)
    ]


# Sampling


def test_every_step_is_drawn_equally_often() -> None:
    draws = np.stack([sample_rows(50, 20, seed) for seed in range(2000)])
    assert (np.diff(draws, axis=1) > 0).all(), "no step twice, in order"
    share = np.bincount(draws.ravel(), minlength=50) / len(draws)
    assert share == pytest.approx(np.full(50, 0.4), abs=0.05)


def test_the_seed_determines_the_sample() -> None:
    assert (sample_rows(1000, 100, seed=0) == sample_rows(1000, 100, seed=0)).all()
    assert (sample_rows(1000, 100, seed=1) != sample_rows(1000, 100, seed=0)).any()


def test_with_few_steps_all_are_taken() -> None:
    assert sample_rows(5, 5, 0).tolist() == sample_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]


# Estimates


def test_columns_are_those_of_the_whole_batch(played: list[Trajectory]) -> None:
    settings = AlgorithmSettings(context_length=1)
    rows = np.array([1, 7, 13, 30])
    found = sampled_columns(played, settings, rows)
    scored = score(played, settings)
    assert found["group"] == scored.steps.task[rows].tolist() == [0, 0, 0, 2]
    assert found["member"] == [0, 2, 3, 0]
    assert found["time"] == [1, 1, 4, 2]
    others = {*NEEDS_CRITIC, *TEACHERS, STRATA}
    assert found["estimates"].keys() == ESTIMATORS.keys() - others
    for name in ("hgpo", "gigpo", "grpo", "reinforce", "graphgpo"):
        expected = find_estimator(name)(scored.steps, settings.estimator_settings())
        assert found["estimates"][name] == pytest.approx(expected[rows], rel=1e-4)
    assert list(found["levels"]) == list(found["sizes"]) == ["k = 0", "k = 1", "oracle"]
    for name, estimator in (("k = 0", "hgpo_no_hierarchy"), ("k = 1", "oracle_context")):
        assert found["levels"][name] == found["estimates"][estimator]
    assert found["levels"]["oracle"] == found["estimates"]["oracle"]
    assert found["sizes"]["k = 0"] == [4, 1, 4, 4]
    assert found["sizes"]["oracle"] == [2, 1, 1, 2]


# Agent states


def test_equal_agent_states_of_a_group_are_shared(played: list[Trajectory]) -> None:
    rows = np.arange(14)  # all of the first group
    states = agent_states(played, [7] * 12, rows)
    members = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    places = [*members, *((3, time) for time in range(5))]
    shared = [[places[step] for step in state.steps] for state in states]
    assert shared[0] == [(0, 0), (1, 0), (2, 0), (3, 0)], "the first step"
    assert shared[1:3] == [[(0, 1), (1, 1)], [(0, 2), (1, 2)]]
    assert [len(state) for state in shared[3:]] == [1] * 6
    assert [len(state.turns) for state in states[:3]] == [0, 1, 2]
    assert {state.task for state in states} == {7}


def test_states_are_not_shared_without_knowing_them(played: list[Trajectory]) -> None:
    rows = np.array([0, 3])
    assert len(agent_states(played, [7] * 12, rows)) == 1
    assert len(agent_states(played, [7] * 12, np.array([0, 14]))) == 2, "another group"
    other = replace(played[1].steps[0], turn=replace(played[1].steps[0].turn, action="else"))
    assert len(agent_states(played, [7] * 12, np.array([1, 4]))) == 1
    played[1].steps[0] = other
    assert len(agent_states(played, [7] * 12, np.array([1, 4]))) == 2, "after another action"
    for each in played:
        first = each.steps[0]
        each.steps[0] = replace(first, turn=replace(first.turn, prompt_truncated=True))
    assert len(agent_states(played, [7] * 12, rows)) == 2


def test_a_state_has_the_turns_before_it_and_the_response(played: list[Trajectory]) -> None:
    (state,) = agent_states(played, [7] * 12, np.array([2]))
    assert [*state.turns, *state.executed] == played[0].turns


# Continuing and refusing


class Player:
    """A stand-in for the env runner whose values depend only on the number of the state."""

    def __init__(self, played: list[Trajectory]):
        self.played = played
        self.rollouts = 0
        self.branched: list[int] = []
        self.stop_after = 100

    def num_tasks(self, split: str) -> int:
        return 100

    def play(self, split: str, tasks: list[int], size: int, temperature: float) -> list[Trajectory]:
        assert len(tasks) == PLAN.groups
        self.rollouts += 1
        return self.played

    def branch(
        self,
        states: Mapping[int, AgentState],
        branches: int,
        settings: AlgorithmSettings,
        on_values: OnValues,
    ) -> None:
        assert branches == PLAN.branches
        for number in sorted(states, reverse=True):
            if self.stop_after == 0:
                raise RunStoppedError("stopped")
            self.stop_after -= 1
            self.branched.append(number)
            q = [MeanReturn(2.0 * number, 16.0) for _ in states[number].executed]
            on_values(number, MeanReturn(number, 9.0), q)


@pytest.fixture
def config(generated_games: Path, tmp_path: Path) -> RunConfig:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no tensors
    (model / "config.json").write_text('{"model_type": "qwen2"}')
    (model / "tokenizer.json").touch()
    gateway = "rollout.gateway_port=8100"  # set by a run that clients played; not used for branches
    return load_config(None, [f"model.model_path={model}", f"env.data={generated_games}", gateway])


@pytest.fixture
def player(played: list[Trajectory], monkeypatch: pytest.MonkeyPatch) -> Player:
    player = Player(played)

    @contextmanager
    def served(config: RunConfig, runner: type) -> Iterator[Player]:
        assert runner is credit.CreditRunner
        assert config == config.without_learners()
        yield player

    monkeypatch.setattr(credit, "served", served)
    monkeypatch.setattr(credit, "ray_cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(fidelity, "RESAMPLES", 20)
    return player


def run(config: RunConfig, folder: Path, plan: Plan = PLAN) -> Result:
    reported: list[tuple[int, int]] = []
    where, result = bench_credit(config, plan, folder, lambda *done: reported.append(done))
    assert where == folder
    assert reported == sorted(reported)
    assert all(done <= total for done, total in reported)
    return result


@pytest.mark.parametrize("estimator", ["hcapo", "vetta", "ppo"])
def test_estimators_that_need_a_learner(
    config: RunConfig, player: Player, tmp_path: Path, estimator: str
) -> None:
    """All estimators are compared, whichever the run uses."""
    ours = run(config, tmp_path / "ours")
    of_run = config.algorithm.model_copy(update={"estimator": estimator})
    assert run(config.model_copy(update={"algorithm": of_run}), tmp_path / "theirs") == ours


def test_a_stopped_command_continues(config: RunConfig, player: Player, tmp_path: Path) -> None:
    whole = run(config, tmp_path / "whole")
    states = player.branched.copy()
    player.branched.clear()
    player.stop_after = 3
    with pytest.raises(RunStoppedError):
        run(config, tmp_path / "parts")
    with (tmp_path / "parts" / credit.BRANCHES).open("a") as file:
        file.write('{"state": 5, "v": {"va')  # killed while writing
    player.stop_after = 100
    assert run(config, tmp_path / "parts") == whole
    assert sorted(player.branched) == sorted(states), "no state twice"
    assert player.rollouts == 2
    assert run(config, tmp_path / "parts") == whole
    assert player.rollouts == 2, "nothing was left to play"


def test_the_truth_of_a_step_is_that_of_its_state(
    config: RunConfig, player: Player, tmp_path: Path
) -> None:
    result = run(config, tmp_path / "out")
    _, states = read_steps(tmp_path / "out")
    number = {step: n for n, state in enumerate(states) for step in state.steps}
    assert sorted(number) == list(range(PLAN.steps))
    assert result.v == [number[step] for step in range(PLAN.steps)]
    assert result.q == [2 * v for v in result.v]
    assert result.error == [5.0] * PLAN.steps


@pytest.mark.parametrize(
    ("overrides", "plan", "name"),
    [
        (["algorithm.gamma=0.9"], PLAN, "algorithm"),
        (["seed=1"], PLAN, "seed"),
        (["rollout.group_size=2"], PLAN, "group_size"),
        ([], replace(PLAN, branches=5), "branches"),
    ],
)
def test_other_arguments_are_refused(
    config: RunConfig,
    player: Player,
    tmp_path: Path,
    overrides: list[str],
    plan: Plan,
    name: str,
) -> None:
    run(config, tmp_path / "out")
    paths = [f"model.model_path={config.model.model_path}", f"env.data={config.env.data}"]
    other = load_config(None, [*paths, *overrides])
    message = rf"--output: .*out was begun by another protocol \(other: {name}\): repeat its"
    with pytest.raises(ConfigError, match=message):
        run(other, tmp_path / "out", plan)


def test_other_weights_are_refused(config: RunConfig, player: Player, tmp_path: Path) -> None:
    run(config, tmp_path / "out")
    (Path(str(config.model.model_path)) / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ConfigError, match=r"another protocol \(other: model\)"):
        run(config, tmp_path / "out")


def test_an_edited_template_is_refused(config: RunConfig, player: Player, tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(Path(load_template(config.agent.prompt).filename or "").read_text())
    agent = config.agent.model_copy(update={"prompt": str(template)})
    own = config.model_copy(update={"agent": agent})
    run(own, tmp_path / "out")
    template.write_text(f"{template.read_text()} ")
    with pytest.raises(ConfigError, match=r"another protocol \(other: templates\)"):
        run(own, tmp_path / "out")


def test_another_folder_is_refused(config: RunConfig, player: Player, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(ConfigError, match="contains other files: choose another directory"):
        run(config, tmp_path)


def test_the_estimator_does_not_matter(config: RunConfig) -> None:
    """The protocol ignores the run's estimator, since all estimators are computed."""
    grpo = config.algorithm.model_copy(update={"estimator": "grpo"})
    changed = config.model_copy(update={"algorithm": grpo})
    assert credit.describe(changed, PLAN, "d") == credit.describe(config, PLAN, "d")
    assert credit.describe(config, PLAN, "e") != credit.describe(config, PLAN, "d")


def test_an_environment_without_snapshots_is_refused() -> None:
    config = load_config(None, ["env.env_id=tests.unit.bench.test_credit:NoSnapshots-v0"])
    with pytest.raises(ConfigError, match=r"has no snapshot\(\), which branches need: .*#branches"):
        credit.check(config)


def test_strategies_are_refused() -> None:
    with pytest.raises(ConfigError, match="hgpo bench credit does not support strategies"):
        credit.check(load_config(Path("alfworld_pocket_strata"), []))


def test_groups_of_one_and_a_penalty_of_whole_episodes_are_refused(config: RunConfig) -> None:
    for section, changes, message in (
        ("rollout", {"group_size": 1}, "group_size: set it to 2 or more"),
        ("algorithm", {"keep_penalty": 0.3}, "keep_penalty: set it to 0"),
    ):
        changed = getattr(config, section).model_copy(update=changes)
        with pytest.raises(ConfigError, match=f"{section}.{message}"):
            credit.check(config.model_copy(update={section: changed}))


# The command


def test_the_command_plays_and_writes_a_figure(
    config: RunConfig, player: Player, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text("name: mine")
    settings = [f"model.model_path={config.model.model_path}", f"env.data={config.env.data}"]
    options = ["--groups", "3", "--steps", "12", "--branches", "4", "--output"]
    arguments = [str(tmp_path / "run.yaml"), *settings, *options, str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["bench", "credit", *arguments])
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(".lock", "protocol.json", "steps.pickle", "branches.jsonl", "result.json", "credit.png")
    }
    again = CliRunner().invoke(app, ["bench", "credit", *arguments, "--json"])
    assert json.loads(again.stdout)["true advantages"][0]["steps"] == PLAN.steps
    assert player.rollouts == 1


def test_a_result_is_shown_again(
    config: RunConfig, player: Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config, tmp_path / "out")
    file, figure = tmp_path / "out" / credit.RESULT, tmp_path / "figure.png"
    done = CliRunner().invoke(app, ["bench", "credit", str(file), "--figure", str(figure)])
    assert done.exit_code == 0, done.output
    assert "correlation with the true advantage" in done.stdout
    assert "hgpo - gigpo" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")
    done = CliRunner().invoke(app, ["bench", "credit", str(file), "--json"])
    tables = json.loads(done.stdout)
    assert tables["true advantages"][0]["steps"] == PLAN.steps
    assert len(tables["correlation with the true advantage"][0]["pearson"]) == 3


def test_bad_result_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none.json"):
        load_result(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"format": "hgpo-credit-2"}')
    with pytest.raises(DataError, match="format"):
        load_result(tmp_path / "bad.json")
