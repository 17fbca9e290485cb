"""`hgpo sweep` before Ray starts: the grid, errors of bad input, and required resources."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_wrappers.errors import DataError
from hgpo_rllib.cli.sweep import check_trials, repeat_grid
from hgpo_rllib.config import load_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.placement import Demand, trial_demand
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run import sweep as sweep_module
from hgpo_rllib.run.grid import (
    ASHA,
    NAME_LENGTH,
    SWEEP_FILE,
    Axis,
    Sweep,
    Trial,
    make_sweep,
    new_folder,
    open_sweep,
    parse_axis,
    trial_name,
)
from hgpo_rllib.run.lock import LOCK
from hgpo_rllib.run.sweep import prepare_trial
from tests.unit.cli.command import POCKET, assert_refused

ALPHA = "algorithm.weight_alpha"
K = "algorithm.context_length"


def small_sweep(*axes: str, seeds: int = 1) -> Sweep:
    return make_sweep(POCKET, ["seed=5"], [parse_axis(axis) for axis in axes], seeds)


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        (f"{ALPHA}=0,1,2", Axis(ALPHA, (0, 1, 2))),
        ("learner.lr=1e-4, 0.001", Axis("learner.lr", ("1e-4", 0.001))),
        ("agent.memory_length=null,2", Axis("agent.memory_length", (None, 2))),
        ("env.options.task_types=[a,b],[c]", Axis("env.options.task_types", (["a", "b"], ["c"]))),
        ("agent.prompt=a=b", Axis("agent.prompt", ("a=b",))),
    ],
)
def test_values_are_yaml(text: str, axis: Axis) -> None:
    assert parse_axis(text) == axis


@given(st.lists(st.integers() | st.booleans() | st.none(), min_size=1, unique_by=repr))
def test_an_axis_holds_what_is_written(values: list[object]) -> None:
    words = ["null" if value is None else str(value).lower() for value in values]
    assert parse_axis(f"a.b={','.join(words)}") == Axis("a.b", tuple(values))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("c.yaml x=1 --grid a=1,2 b=3", "c.yaml x=1 --grid a=1,2 --grid b=3"),
        ("--grid a=1 b=2 --seeds 3 c.yaml", "--grid a=1 --grid b=2 --seeds 3 c.yaml"),
        ("c.yaml --grid a=1 --grid b=2", "c.yaml --grid a=1 --grid b=2"),
        ("c.yaml --output x --grid", "c.yaml --output x"),
        ("--resume x", "--resume x"),
    ],
)
def test_a_grid_takes_several_settings(written: str, read: str) -> None:
    assert list(repeat_grid(written.split())) == read.split()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ["--grid is missing"]),
        (("--grid", "weight_alpha"), ["--grid 'weight_alpha'", "section.key=value,value"]),
        (("--grid", f"{ALPHA}="), [ALPHA, "at least one value"]),
        (("--grid", f"{ALPHA}=1,1"), [ALPHA, "duplicate value", "1,1"]),
        (("--grid", f"{ALPHA}=[1"), [ALPHA, "not YAML"]),
        (("--grid", f"{ALPHA}=2024-02-30"), [ALPHA, "not YAML"]),
        (("--grid", f"{ALPHA}=2024-01-01"), [ALPHA, "not plain values"]),
        (("--grid", f"{ALPHA}=1", "--grid", f"{ALPHA}=2"), [ALPHA, "duplicate key"]),
        (("--grid", "algorithm.gama=1,2"), ["algorithm.gama", "available", "gamma"]),
        (("--grid", f"{ALPHA}=0,-1"), [ALPHA, "greater than or equal to 0", "-1"]),
        (("--grid", "seed=1,2"), ["--seeds"]),
        (("--grid", "model.model_path=no-model"), ["model.model_path", "no-model"]),
        (
            ("agent.constrain_actions=false", "--grid", "rollout.gateway_port=8100,8101"),
            ["rollout.gateway_port", "same port"],
        ),
        (("--grid", f"{ALPHA}=1", "--output", str(POCKET.parent)), ["--output", "exists"]),
        (("--grid", f"{ALPHA}=1", K), [f"--grid '{K}'", "section.key=value,value"]),
        (("--grid", f"{ALPHA}=1", "--scheduler", "pbt"), ["--scheduler pbt", "asha"]),
        (
            ("evaluation.interval=0", "--grid", f"{ALPHA}=1", "--scheduler", "asha"),
            ["--scheduler asha", "evaluation.interval", "got 0"],
        ),
        (
            ("iterations=5", "--grid", "evaluation.interval=2,5", "--scheduler", "asha"),
            ["--scheduler asha", "below iterations=5", "got 5"],
        ),
    ],
)
def test_bad_grid(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    """A bad grid exits with code 2 and one line that names the setting, and writes nothing."""
    assert_refused(tmp_path, ("sweep", str(POCKET), *arguments), named)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), ["CONFIG", "--resume"]),
        (("--resume", "."), ["--resume", "is not a sweep directory"]),
        (("--resume", ".", "--seeds", "2"), ["--resume", "remove all other arguments"]),
        (("--resume", ".", "--scheduler", "asha"), ["--resume", "remove all other arguments"]),
    ],
)
def test_bad_resume(tmp_path: Path, arguments: tuple[str, ...], named: list[str]) -> None:
    assert_refused(tmp_path, ("sweep", *arguments), named)


def test_every_combination_with_every_seed() -> None:
    sweep = small_sweep(f"{ALPHA}=0,1", f"{K}=2,4", seeds=2)
    assert str(sweep) == "2 x 2 points, 2 seeds: 8 trials"
    found = [
        (t.config.algorithm.weight_alpha, t.config.algorithm.context_length, t.config.seed)
        for t in sweep.trials
    ]
    assert found == [(a, k, s) for a in (0, 1) for k in (2, 4) for s in (5, 6)]
    assert [t.point for t in sweep.trials[::2]] == [
        {ALPHA: a, K: k} for a in (0, 1) for k in (2, 4)
    ]
    assert sweep.trials[3].name == "04-weight_alpha=0-context_length=4-seed=6"


@pytest.mark.parametrize(
    ("axis", "part"),
    [
        ("agent.strategy_prompt=strategy_full,nothing", "no prompt template 'nothing'"),
        ("cache=FOLDER,FOLDER/file/data", "file is not a writable directory"),
    ],
)
def test_every_trial_is_checked(tmp_path: Path, axis: str, part: str) -> None:
    """All trials are checked before the first one starts."""
    (tmp_path / "file").touch()
    axis = axis.replace("FOLDER", str(tmp_path))
    run_file = POCKET.with_name("alfworld_pocket_strata.yaml")
    sweep = make_sweep(run_file, [], [parse_axis(axis)], 1)
    with pytest.raises(ConfigError, match=part):
        check_trials(sweep)


def test_lengths_of_memory_and_of_context_are_tied_or_apart() -> None:
    tied = small_sweep(f"{K}=2,4")
    assert [trial.config.agent.memory_length for trial in tied.trials] == [2, 4]
    apart = small_sweep(f"{K}=2,4", "agent.memory_length=1,null")
    assert [t.config.agent.memory_length for t in apart.trials] == [1, 2, 1, 4]


def test_a_kept_sweep_is_the_same_without_its_run_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(POCKET.read_text())
    sweep = make_sweep(config, [], [parse_axis("learner.lr=1e-4,1e-3")], 2, ASHA)
    sweep.save(tmp_path / "sweep")
    config.unlink()
    assert open_sweep(tmp_path / "sweep") == sweep


def test_a_sweep_with_unknown_settings(tmp_path: Path) -> None:
    """Unknown settings, as of another version, raise an error that names them."""
    small_sweep(f"{K}=2").save(tmp_path)
    file = tmp_path / SWEEP_FILE
    file.write_text(file.read_text().replace('"gamma"', '"gama"'))
    with pytest.raises(DataError, match=r"^--resume: .*sweep.json: .*0.config.algorithm.gama: "):
        open_sweep(tmp_path)
    file.write_text("{")
    with pytest.raises(DataError, match="Invalid JSON"):
        open_sweep(tmp_path)


def test_a_sweep_without_trials(tmp_path: Path) -> None:
    (tmp_path / SWEEP_FILE).write_text('{"axes": [], "trials": []}')
    with pytest.raises(DataError, match=r"trials: .* at least 1 item"):
        open_sweep(tmp_path)


def test_names_of_trials_are_safe_and_distinct() -> None:
    name = trial_name(3, {"agent.prompt": "../up/a b" + 300 * "x"})
    assert name.startswith("03-prompt=.._up_a_b")
    assert "/" not in name
    assert len(name) == NAME_LENGTH


def test_a_new_folder_is_among_those_of_runs() -> None:
    folder = new_folder(small_sweep(f"{K}=2"), None)
    assert folder.parent == Path("runs")
    assert folder.name.startswith("alfworld_pocket-sweep-")


def test_an_output_folder_in_which_a_sweep_did_not_begin(tmp_path: Path) -> None:
    """A killed command can leave its lock file; any other file belongs to something else."""
    sweep = small_sweep(f"{K}=2")
    (tmp_path / LOCK).touch()
    assert new_folder(sweep, tmp_path) == tmp_path
    (tmp_path / "other").touch()
    with pytest.raises(ConfigError, match="exists; --resume"):
        new_folder(sweep, tmp_path)


def demand_of(*overrides: str) -> Demand:
    config = load_config(POCKET, list(overrides))
    return trial_demand(config.cluster, config.policy_server)


def test_a_trial_has_its_own_process_learners_and_replicas() -> None:
    gpus = ["cluster.learner_gpus=1", "policy_server.replica_gpus=1"]
    demand = demand_of(*gpus, "cluster.num_learners=2", "policy_server.num_replicas=2")
    assert demand.bundles == [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}]
    assert demand.policy_server == 2 * [{"CPU": 1, "GPU": 1}]
    assert str(demand) == (
        "3 CPU (learner 1, policy server 2) and 4 GPU (learner 2, policy server 2)"
    )
    assert demand_of("policy_server.replica_cpus=0").policy_server == [{}]
    runners = ["cluster.num_env_runners=3", "cluster.env_runner_cpus=0.5", "cluster.num_learners=1"]
    demand = demand_of(*gpus, *runners)
    assert demand.bundles == [{"CPU": 1}, *3 * [{"CPU": 0.5}], {"GPU": 1}]
    assert str(demand) == (
        "3.5 CPU (learner 1, env runners 1.5, policy server 1) and "
        "2 GPU (learner 1, env runners 0, policy server 1)"
    )


def test_the_sweep_names_its_most_demanding_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demands = [demand_of(f"policy_server.num_replicas={count}") for count in (1, 3, 2)]
    free = {"CPU": 5.0}
    monkeypatch.setattr(sweep_module, "alive_nodes", lambda: [{"CPU": 5.0}])
    monkeypatch.setattr(sweep_module.ray, "available_resources", lambda: free)
    sweep_module._compare_with_supply(demands, TrainingConsole())
    said = capsys.readouterr().out
    named = "a trial needs 4 CPU (learner 1, policy server 3); the cluster has 5 CPU: 1 at a time"
    assert named in " ".join(said.split())
    assert "other jobs use" not in " ".join(said.split())
    free["CPU"] = 3.0
    sweep_module._compare_with_supply(demands, TrainingConsole())
    said = capsys.readouterr().out
    assert "other jobs use some of it: trials wait until it is free" in " ".join(said.split())


def test_trials_are_not_colocated() -> None:
    """`colocate` is refused, as Ray could place one trial's learner with another's replica."""
    gpus = ["cluster.learner_gpus=1", "cluster.num_learners=1", "policy_server.replica_gpus=1"]
    with pytest.raises(ConfigError, match="leave it out in sweeps"):
        demand_of(*gpus, "policy_server.colocate=true")


def test_rllib_asks_tune_for_the_main_process_and_learners() -> None:
    """RLlib's resource request, which `tune.Tuner(HGPO)` uses, equals that of a sweep's trial."""
    from hgpo_rllib.algorithm import HGPO, HGPOConfig

    gpus = ["cluster.learner_gpus=1", "cluster.num_learners=1"]
    run = load_config(POCKET, ["env.data=x", "model.model_path=x", *gpus])
    asked = HGPO.default_resource_request(HGPOConfig.from_run_config(run))
    expected = trial_demand(run.cluster, run.policy_server).bundles
    assert asked.bundles == expected == [{"CPU": 1}, {"GPU": 1}]


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ([{"CPU": 2.0}], 1),
        ([{"CPU": 5.0, "memory": 1e9}], 2),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 3),
        ([{"CPU": 1.0}, {"CPU": 2.0}], 1),
        ([{"CPU": 1.0}, {"CPU": 1.0}], 1),
        ([{"CPU": 1.0}, {"memory": 1e9}], 0),
    ],
)
def test_as_many_trials_as_the_nodes_hold(nodes: list[dict[str, float]], count: int) -> None:
    assert demand_of().fitting(nodes) == count


def test_a_process_is_on_one_node() -> None:
    """Several nodes together do not hold a process that fits none of them."""
    large = demand_of("policy_server.replica_cpus=3")
    assert large.fitting([{"CPU": 2.0}, {"CPU": 2.0}]) == 0
    assert large.fitting([{"CPU": 1.0}, {"CPU": 3.0}]) == 1
    replicas = demand_of("policy_server.num_replicas=3")
    assert replicas.fitting([{"CPU": 2.0}, {"CPU": 2.0}]) == 1


def test_custom_resources_say_where_replicas_are() -> None:
    custom = demand_of("policy_server.replica_resources={rollout: 1}")
    assert "1 rollout (learner 0, policy server 1)" in str(custom)
    assert custom.fitting([{"CPU": 9.0}]) == 0
    assert custom.fitting([{"CPU": 9.0}, {"CPU": 2.0, "rollout": 3.0}]) == 2


def test_shares_of_a_gpu() -> None:
    shares = Demand([{"CPU": 1.0, "GPU": 0.2}], [], [{"GPU": 0.1}])
    assert shares.fitting([{"CPU": 9.0, "GPU": 0.9}]) == 3
    halves = Demand([{"CPU": 1.0, "GPU": 0.4}], [], [{"GPU": 0.4}])
    assert halves.fitting([{"CPU": 9.0, "GPU": 4.0}]) == 4, "each process uses one GPU"


@pytest.mark.parametrize(
    ("overrides", "nodes", "named"),
    [
        (["policy_server.num_replicas=2"], [{"CPU": 2.0}], ["3 CPU", "has 2 CPU"]),
        (["policy_server.replica_cpus=2"], 2 * [{"CPU": 1.0}], ["3 CPU", "has 1 CPU, 1 CPU"]),
        (["policy_server.replica_gpus=1"], [{"CPU": 9.0}], ["1 GPU", "has 9 CPU"]),
        ([], [{}], ["2 CPU", "neither CPU nor GPU"]),
    ],
)
def test_too_little_is_one_line(
    overrides: list[str], nodes: list[dict[str, float]], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        demand_of(*overrides).check(nodes)
    assert "\n" not in str(caught.value)
    for part in (*named, "policy_server.*"):
        assert part in str(caught.value)


@pytest.mark.parametrize("state", ["state", "state.previous", None])
def test_a_trial_with_a_checkpoint_is_kept(tmp_path: Path, state: str | None) -> None:
    """A trial with a current or previous checkpoint is kept; other trials start again."""
    run = tmp_path / "01"
    (run / (state or "plots")).mkdir(parents=True)
    (run / "config.yaml").write_text("name: began\n")
    config = load_config(POCKET, ["env.data=games", "model.model_path=model"])
    prepare_trial(Trial("01", {}, config), run, TrainingConsole())
    files = {path.name for path in run.iterdir()}
    if state is not None:
        assert files == {state, "config.yaml"}
        assert (run / "config.yaml").read_text() == "name: began\n"
    else:
        assert files == {"config.yaml"}
        assert load_config(run / "config.yaml", []).name == "alfworld_pocket"
