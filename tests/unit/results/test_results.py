"""Runs, sweeps and evaluations as DataFrames: values and schemas."""

import json
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from env_wrappers.files import write_json
from hgpo_rllib.config import load_config
from hgpo_rllib.jsonl import append_jsonl
from hgpo_rllib.metrics import METRICS
from hgpo_rllib.results import (
    ResultsError,
    Runs,
    frames,
    load_run,
    load_runs,
    load_sweep,
)
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.run.grid import make_sweep, parse_axis
from tests.unit.project import pages
from tests.unit.reporting.reporting_rows import (
    EPISODES,
    crash,
    diagnostics_row,
    episode,
    evaluation_row,
    make_run,
    metrics_row,
    write_jsonl,
)

EXAMPLE = pages.ROOT / "tuned_examples" / "alfworld_pocket.yaml"


def record(folder: Path, rates: list[float], *settings: str) -> Path:
    """Record a run as `hgpo train` does, with these success rates of its evaluations."""
    run = RunDirectory.create(load_config(EXAMPLE, [f"output={folder / 'new'}", *settings]))
    for iteration, rate in enumerate(rates):
        if iteration:
            row = metrics_row(iteration) | diagnostics_row(iteration)
            append_jsonl(run.metrics, [row | {"success_rate": rate / 2}])
            run.write_episodes(iteration, [row | {"iteration": iteration} for row in EPISODES])
        append_jsonl(run.evaluations, [evaluation_row(iteration, "all", rate, 0.05, 100)])
    write_json(run.summary, {"seconds": {}})
    return run.path


def frames_of(result: object) -> dict[str, pd.DataFrame]:
    names = ("metrics", "group_sizes", "evaluations", "task_types", "tasks", "episodes", "steps")
    return {name: getattr(result, name) for name in names}


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/dataframes.md computes the learning curve of three seeds."""
    mpl.use("Agg")
    for seed, after in enumerate((0.4, 0.5, 0.9)):
        made = record(tmp_path, [0.2, after], f"seed={seed}")
        (tmp_path / "runs").mkdir(exist_ok=True)
        made.rename(tmp_path / "runs" / f"seed-{seed}")
    monkeypatch.chdir(tmp_path)
    _, blocks = pages.split((pages.ROOT / "docs" / "dataframes.md").read_text())
    (code,) = [block.text for block in blocks if block.language == "python"]
    names: dict[str, object] = {}
    exec(compile(code, "docs/dataframes.md", "exec"), names)
    curve = names["curve"]
    assert isinstance(curve, pd.DataFrame)
    assert curve.index.tolist() == [0, 1]
    assert curve["mean"].tolist() == pytest.approx([0.2, 0.6])
    assert curve["sem"].tolist() == pytest.approx([0.0, np.std([0.4, 0.5, 0.9], ddof=1) / 3**0.5])
    assert (tmp_path / "held_out.png").read_bytes().startswith(b"\x89PNG")


class TestRun:
    def test_values(self, run_dir: Path) -> None:
        run = load_run(run_dir)
        assert (run.name, run.config["seed"], run.iterations, run.finished) == ("small", 1, 4, True)
        assert run.metrics["iteration"].tolist() == [1, 2, 3, 4]
        assert run.metrics["advantage_mean"].tolist() == pytest.approx([0.02, 0.04, 0.06, 0.08])
        assert run.metrics["level_fraction_k1"].tolist() == [0.5] * 4
        rows = run.evaluations.query("split == 'all'")
        assert rows["success_rate"].tolist() == pytest.approx([0.2, 0.28, 0.36])
        assert run.evaluations["split"].unique().tolist() == ["valid_seen", "valid_unseen", "all"]
        task_type = run.task_types.query("split == 'all' and iteration == 0").iloc[0]
        assert (task_type["task_type"], task_type["episodes"]) == ("pick_and_place", 25)
        assert task_type["standard_error"] == pytest.approx(0.08)

    def test_a_run_without_a_name(self, run_dir: Path) -> None:
        """The name is that of the directory."""
        (run_dir / "config.yaml").write_text("seed: 1\n")
        assert load_run(run_dir).name == "run"

    def test_episodes_and_their_steps(self, run_dir: Path) -> None:
        run = load_run(run_dir)
        assert run.episodes["success"].tolist() == [True, True, False, False]
        assert run.episodes["episode_length"].tolist() == [2, 3, 3, 2]
        joined = run.steps.merge(run.episodes, on=["iteration", "group", "member"])
        assert len(joined) == len(run.steps) == 10
        assert joined.groupby("success")["advantage"].mean()[False] == pytest.approx(-0.5)
        assert run.steps["group_sizes"][0] == [4, 2, 1]

    def test_only_some_iterations_are_read(self, run_dir: Path) -> None:
        for iteration in (1, 2, 10):
            file = run_dir / "episodes" / f"iteration_{iteration:04d}.jsonl"
            write_jsonl(file, [episode(9, True, [1.0], iteration)])
        assert list(load_run(run_dir).episode_files) == [1, 2, 4, 10]
        assert load_run(run_dir, [2, 10, 99]).episodes["iteration"].tolist() == [2, 10]

    def test_sizes_of_groups(self, tmp_path: Path) -> None:
        run = load_run(record(tmp_path, [0.2, 0.3]))
        sizes = run.group_sizes.set_index(["depth", "size"])["share"]
        assert sizes[1, "3-4"] == 0.25
        assert sizes.groupby("depth").sum().tolist() == [1.0, 0.875]

    def test_what_is_not_a_finite_number_is_missing(self, run_dir: Path) -> None:
        rows = [{"iteration": i, "kl": x} for i, x in enumerate((None, math.nan, math.inf, 0.5))]
        write_jsonl(run_dir / "metrics.jsonl", rows)
        assert load_run(run_dir).metrics["kl"].isna().tolist() == [True, True, True, False]

    def test_a_torn_last_line_is_left_out(self, run_dir: Path) -> None:
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 5, "succ')
        assert load_run(run_dir).iterations == 4

    def test_a_compressed_file_cut_off_keeps_its_whole_lines(self, run_dir: Path) -> None:
        file = run_dir / "episodes" / "iteration_0004.jsonl.gz"
        file.write_bytes(file.read_bytes()[:-20])
        assert 1 <= len(load_run(run_dir).episodes) < 4

    def test_a_repeated_iteration_counts_as_written_last(self, run_dir: Path) -> None:
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": 3, "kl": 0.5}) + "\n")
        with (run_dir / "evaluation.jsonl").open("a") as file:
            file.write(json.dumps(evaluation_row(2, "all", 0.9, 0.1, 100)) + "\n")
        run = load_run(run_dir)
        assert run.metrics["iteration"].tolist() == [1, 2, 3, 4]
        assert run.metrics["kl"].tolist() == [0.01, 0.01, 0.5, 0.01]
        rates = run.evaluations.query("split == 'all'")["success_rate"]
        assert rates.tolist() == pytest.approx([0.2, 0.9, 0.36])
        assert len(run.task_types) == 9


class TestSchemas:
    def test_are_those_of_a_whole_run_for_any(self, run_dir: Path, tmp_path: Path) -> None:
        whole = frames_of(load_run(run_dir))
        crashed = frames_of(load_run(crash(make_run(tmp_path / "crashed"))))
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "config.yaml").write_text("seed: 0\n")
        empty = frames_of(load_run(tmp_path / "empty"))
        assert [len(frame) for frame in crashed.values()] == [1, 0, 0, 0, 0, 0, 0]
        for name, frame in whole.items():
            assert len(empty[name]) == 0
            for other in (crashed[name], empty[name]):
                shared = frame.columns.intersection(other.columns, sort=False)
                assert frame[shared].dtypes.equals(other[shared].dtypes)
                assert not other.columns.difference(frame.columns).size
                left = set(frame.columns) - set(other.columns)
                assert all(column.startswith("level_") for column in left)

    def test_several_runs_have_them_too(self, run_dir: Path, tmp_path: Path) -> None:
        both = load_runs([run_dir, crash(make_run(tmp_path / "crashed"))])
        for name, frame in frames_of(both).items():
            alone = getattr(load_run(run_dir), name)
            assert list(frame)[:3] == ["run", "experiment", "seed"]
            assert frame[list(alone)].dtypes.equals(alone.dtypes)

    @pytest.mark.parametrize(
        "name", ["GROUP_SIZES", "EVALUATIONS", "TASK_TYPES", "TASKS", "EPISODES"]
    )
    def test_every_column_is_documented(self, name: str) -> None:
        text = (pages.ROOT / "docs" / "dataframes.md").read_text()
        every = getattr(frames, name) | frames.STEPS | frames.EVALUATED | frames.EVALUATED_STEPS
        assert [column for column in every if f"`{column}`" not in text] == []

    def test_metrics_are_the_declared_ones(self) -> None:
        placeholders = {name for name in METRICS if "{" in name}
        assert frames.METRICS.keys() == METRICS.keys() - placeholders


class TestRuns:
    def test_seeds_of_experiments(self, tmp_path: Path) -> None:
        paths = [
            record(tmp_path, [0.2, 0.5], f"seed={seed}", f"algorithm.estimator={estimator}")
            for estimator in ("hgpo", "gigpo")
            for seed in range(2)
        ]
        runs = load_runs(paths)
        assert runs.runs["experiment"].tolist() == ["hgpo", "hgpo", "gigpo", "gigpo"]
        assert runs.runs["seed"].tolist() == [0, 1, 0, 1]
        assert runs.metrics.groupby("experiment")["iteration"].count().to_dict() == {
            "hgpo": 2,
            "gigpo": 2,
        }
        assert {n: len(part.runs) for n, part in runs.experiments().items()} == {
            "hgpo": 2,
            "gigpo": 2,
        }
        assert runs.settings["algorithm.estimator"].tolist() == runs.runs["experiment"].tolist()

    def test_success_before_and_after(self, tmp_path: Path) -> None:
        runs = load_runs(make_run(tmp_path / "run", 0.20, 0.36))
        (row,) = runs.changes.query("split == 'all'").to_dict("records")
        assert (row["before"], row["after"], row["iteration"]) == (0.20, 0.36, 4)
        assert row["gain"] == pytest.approx(0.16)
        assert row["gain_error"] == pytest.approx(0.05)  # of 0.03 and 0.04, in quadrature
        (task_type,) = runs.task_type_changes.query("split == 'all'").to_dict("records")
        assert task_type["gain_error"] == pytest.approx(math.hypot(0.08, 0.096))

    def test_a_run_without_a_last_evaluation_has_no_gain(self, run_dir: Path) -> None:
        write_jsonl(run_dir / "evaluation.jsonl", [evaluation_row(0, "all", 0.2, 0.03, 100)])
        (row,) = load_runs(run_dir).changes.to_dict("records")
        assert (row["before"], row["episodes"]) == (0.2, 100)
        assert math.isnan(row["after"])
        assert math.isnan(row["gain"])

    def test_a_seed_that_is_no_number_is_missing(self, run_dir: Path) -> None:
        (run_dir / "config.yaml").write_text("seed: first\n")
        assert load_runs(run_dir).runs["seed"].isna().tolist() == [True]

    def test_a_folder_of_runs(self, tmp_path: Path) -> None:
        for seed in range(2):
            make_run(tmp_path / "sweep" / f"0{seed}", seed=seed)
        (tmp_path / "sweep" / "02").mkdir()
        (tmp_path / "sweep" / "02" / "config.yaml").write_text("name: not begun\n")
        assert load_runs(tmp_path / "sweep").runs["run"].tolist() == ["00", "01"]
        loaded = [load_runs(tmp_path / "sweep", iter([number])) for number in (4, 5)]
        assert [len(runs.episodes) for runs in loaded] == [2 * len(EPISODES), 0]

    def test_directories_of_one_name_and_one_given_twice(self, tmp_path: Path) -> None:
        paths = [make_run(tmp_path / folder / "run") for folder in "ab"]
        runs = load_runs([*paths, paths[0], tmp_path / "b" / ".." / "a" / "run"])
        assert runs.runs["run"].tolist() == [str(path) for path in paths]

    def test_a_link_to_itself_is_no_run(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(ResultsError, match="loop"):
            load_runs(tmp_path / "loop")


class TestExperiments:
    @pytest.fixture
    def experiments(self, tmp_path: Path):
        def name(*configs: dict[str, object]) -> list[str]:
            for place, config in enumerate(configs):
                path = tmp_path / str(place)
                path.mkdir(exist_ok=True)
                (path / "config.yaml").write_text(json.dumps({"name": "a"} | config))
            runs = load_runs([tmp_path / str(place) for place in range(len(configs))])
            return runs.runs["experiment"].tolist()

        return name

    def test_seeds(self, experiments) -> None:
        assert experiments({"seed": 0, "output": "x"}, {"seed": 1, "name": "b"}) == ["a", "a"]

    @pytest.mark.parametrize("key", ["cache", "checkpoint_interval", "cluster", "tracking"])
    def test_settings_that_change_no_result(self, experiments, key: str) -> None:
        assert experiments({key: {"a": 1}}, {key: {"a": 2}}) == ["a", "a"]

    def test_the_estimator_says_it_alone(self, experiments) -> None:
        configs = [
            {"algorithm": {"gamma": 0.9, "estimator": estimator}, "seed": seed}
            for estimator, seed in (("hgpo", 0), ("gigpo", 0), ("hgpo", 1))
        ]
        assert experiments(*configs) == ["hgpo", "gigpo", "hgpo"]

    def test_no_more_settings_than_tell_them_apart(self, experiments) -> None:
        found = experiments(
            {"iterations": 1, "algorithm": {"weight_alpha": 0}},
            {"iterations": 2, "algorithm": {"weight_alpha": 1}},
        )
        assert found == ["iterations=1", "iterations=2"]
        both = [{"learner": {"lr": lr}, "critic": {"lr": 3}} for lr in (1, 2)]
        assert experiments(*both) == ["lr=1", "lr=2"]

    def test_settings_of_one_name_have_their_sections(self, experiments) -> None:
        pairs = ((1, 3), (2, 3), (1, 4))
        found = experiments(*({"learner": {"lr": a}, "critic": {"lr": b}} for a, b in pairs))
        assert found[2] == "learner.lr=1 · critic.lr=4"

    def test_equal_numbers_are_one_setting(self, experiments) -> None:
        assert len(set(experiments({"a": {"x": 1}}, {"a": {"x": 1.0}}))) == 1
        assert len(set(experiments({"a": {"x": 1}}, {"a": {"x": 1.5}}))) == 2

    def test_settings_that_a_run_does_not_know_are_not_compared(self, experiments) -> None:
        for pair in ((3, None), (None, 3)):
            configs = [{"a": {"x": 1} | ({"new": new} if new else {})} for new in pair]
            assert len(set(experiments(*configs))) == 1

    def test_entries_of_a_setting_are_compared(self, experiments) -> None:
        """Entries of a setting are compared even if some runs do not set them."""
        options = ({}, {"goals": "human"}, {"nouns": "words"})
        configs = [{"env": {"options": entries, "max_steps": 9}} for entries in options]
        assert experiments(*configs[:2]) == ["goals=not set", "goals=human"]
        assert len(set(experiments(*configs))) == 3
        assert len(set(experiments(configs[0], {"env": {"max_steps": 9}}, configs[1]))) == 1

    def test_long_values_are_cut_only_where_they_stay_apart(self, experiments) -> None:
        end = "/the-same-end-of-a-long-path"
        found = experiments({"env": {"data": "/x" + end}}, {"env": {"data": "/y" + end}})
        assert found == [f"data=/x{end}", f"data=/y{end}"]
        found = experiments({"env": {"data": end + "/1"}}, {"env": {"data": end + "/2"}})
        assert found == [f"data=…{end[-22:]}/{number}" for number in (1, 2)]


def test_a_sweep(tmp_path: Path) -> None:
    """Each frame has the grid's values, and `trials` contains only finished runs."""
    folder = tmp_path / "sweep"
    axes = [parse_axis("algorithm.weight_alpha=0,0.5"), parse_axis("agent.memory_length=2,4")]
    sweep = make_sweep(EXAMPLE, [], axes, seeds=2)
    sweep.save(folder)
    with pytest.raises(ResultsError, match="none of its 8 trials has begun"):
        load_sweep(folder)
    for number, trial in enumerate(sweep.trials[:5]):
        record(tmp_path, [0.2, 0.3 + 0.1 * number]).rename(folder / trial.name)
        (folder / trial.name / "config.yaml").write_text(
            json.dumps({"seed": trial.config.seed, "algorithm": trial.point})
        )
    (folder / sweep.trials[4].name / "summary.json").unlink()
    found = load_sweep(folder)
    assert isinstance(found, Runs)
    assert found.keys == ["algorithm.weight_alpha", "agent.memory_length"]
    trials = found.trials
    assert list(trials)[:5] == ["run", "experiment", *found.keys, "seed"]
    assert trials["algorithm.weight_alpha"].tolist() == [0, 0, 0, 0]
    assert str(found.metrics["algorithm.weight_alpha"].tolist()) == "[0, 0, 0, 0, 0.5]"
    assert trials["seed"].tolist() == [0, 1, 0, 1]
    assert trials["after"].tolist() == pytest.approx([0.3, 0.4, 0.5, 0.6])
    loaded = [load_sweep(folder, iter([number])) for number in (1, 2)]
    assert [len(runs.episodes) for runs in loaded] == [5 * len(EPISODES), 0]
