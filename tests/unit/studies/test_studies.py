"""Study files and records, on synthetic trials."""

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from env_wrappers.files import write_json
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.jsonl import append_jsonl
from hgpo_rllib.results import ResultsError, load_run
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.studies.analysis import Results
from hgpo_rllib.studies.records import load_records, make_record, record_path
from hgpo_rllib.studies.records import write_record as write
from hgpo_rllib.studies.run import is_committed, plan, run_study
from hgpo_rllib.studies.settings import load_study, parse_study, settings_hash
from tests.unit.cli.command import assert_is_refusal, run_hgpo
from tests.unit.results.test_results import record as record_run
from tests.unit.studies.synthetic import CONTENT, SPLITS, changed, folder_with, synthetic


def claiming(**changes: Any) -> dict[str, Any]:
    claim = {"text": "C", "a": "good", "b": "bad"} | changes
    return changed(analysis={"claims": [claim]})


class TestSettings:
    def test_trials_are_ordered_by_seed(self) -> None:
        sweep = parse_study(changed(seeds=[3, 1]), "arms").sweep()
        names = [trial.name for trial in sweep.trials]
        assert names == [f"{arm}-seed{seed}" for seed in (3, 1) for arm in CONTENT["arms"]]
        config = sweep.trials[0].config
        assert (config.seed, config.iterations, config.algorithm.estimator) == (3, 4, "hgpo")
        assert config.evaluation.splits == [*SPLITS]
        assert str(sweep) == "3 points, 2 seeds: 6 trials"

    def test_seeds_can_be_left_out(self) -> None:
        content = {key: value for key, value in CONTENT.items() if key != "seeds"}
        assert parse_study(content, "arms").seeds == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (changed(arm={}), ["unknown key arm", "arms"]),
            (changed(analysis={"claim": []}), ["unknown key analysis.claim", "claims"]),
            (claiming(measure="last"), ["analysis.claims.0.measure", "'area'"]),
            (claiming(c="x"), ["unknown key analysis.claims.0.c", "measure"]),
            (claiming(a="better"), ["no arm 'better'", "good, bad"]),
            (claiming(minus=["good", "worse"]), ["no arm 'worse'", "good, bad"]),
            (claiming(minus=["good"]), ["analysis.claims.0.minus", "1"]),
            (changed(analysis={"baseline": "none"}), ["no arm 'none'"]),
            (changed(seeds=0), ["seeds", "at least one"]),
            (changed(seeds=[1, 1]), ["seeds", "each once"]),
            (changed(seeds=True), ["seeds", "valid list"]),
            (changed(overrides={"seed": 1}), ["seed is set by the study", "seeds"]),
            (changed(arms={"a": {"iterations": 1}}, analysis={}), ["a: iterations", "iterations"]),
            (changed(arms={"a b": {}}, analysis={}), ["'a b' is not a name"]),
            (changed(base="none_such"), ["none_such", "no such file"]),
            (changed(arms={"a": {"algorithm.gama": 1}}, analysis={}), ["arm a", "algorithm.gama"]),
            (
                changed(arms={"a": {}, "b": {"evaluation.interval": 1}}, analysis={}),
                ["arm b", "section evaluation"],
            ),
            (
                changed(arms={"a": {}, "b": {"minutes": 5}}, analysis={}),
                ["arm b", "minutes=null"],
            ),
            (
                changed() | {"arms": {"a": {"name": datetime.date(2024, 1, 1)}}, "analysis": {}},
                ["arm a", "date is not JSON"],
            ),
            ([], ["arms.yaml", "valid dictionary"]),
        ],
    )
    def test_bad_files(self, tmp_path: Path, content: Any, named: list[str]) -> None:
        """Every command exits with code 2 and one line that names the problem."""
        folder = folder_with(tmp_path, content)
        work = tmp_path / "work"
        work.mkdir()
        for number, arguments in enumerate(
            (["power", str(folder / "arms.yaml")], ["report", "--studies", str(folder)])
        ):
            inside = work / str(number)
            inside.mkdir()
            assert_is_refusal(run_hgpo(inside, "study", *arguments), [*named])
            assert list(inside.iterdir()) == []

    def test_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "arms.yaml"
        path.write_bytes(b"title: \xff")
        with pytest.raises(ConfigError, match=r"arms.yaml is not YAML: 'utf-8' codec"):
            load_study(path)

    def test_unknown_study(self, tmp_path: Path) -> None:
        assert_is_refusal(run_hgpo(tmp_path, "study", "run", "nothing"), ["no study nothing"])

    def test_the_hash_is_of_what_affects_results(self) -> None:
        study = parse_study(CONTENT, "arms")
        config = study.config("good", 0)
        elsewhere = config.model_copy(update={"output": "x", "cache": "y", "name": "z"})
        assert settings_hash(elsewhere) == settings_hash(config)
        others = {settings_hash(study.config(arm, seed)) for arm in study.arms for seed in (0, 1)}
        assert len(others) == 6


class TestRecords:
    def test_from_a_run_directory(self, tmp_path: Path) -> None:
        """A record has counts per task, curves and diagnostics, and is the same after reading."""
        study = parse_study(changed(iterations=2), "arms")
        trial = study.sweep().trials[0]
        path = record_run(tmp_path, [0.2, 0.5, 0.6])
        run = RunDirectory(path)
        (path / "started.json").write_text(
            json.dumps({"model": "m" * 64, "games": {"valid_seen": "g" * 64}, "commit": "c"})
        )
        rows = [
            {"iteration": iteration, "split": split, "by_task": [[0, 2, iteration], [3, 2, 1]]}
            for iteration in (0, 2)
            for split in SPLITS
        ]
        append_jsonl(run.evaluations, [row | {"success_rate": 0.5} for row in rows])
        record = make_record("arms", trial, load_run(path), {"numpy": "2"})
        assert record.commit == "c"
        assert record.evaluated == [0, 2]
        found = record.splits["valid_unseen"]
        assert (found.tasks, found.episodes, found.successes) == ([0, 3], [2, 2], [[0, 1], [2, 1]])
        assert record.training["success_rate"] == [0.25, 0.3]
        assert record.diagnostics["level_fraction_k1"] == 0.5
        assert record.diagnostics["tokens_generated"] == 11110.0  # rounded to four digits
        assert record.diagnostics["oracle_group_size"] == 4.5  # the mean of 4 and 5
        assert record.group_sizes["0"][-1] == 0.25
        assert record.group_sizes["1"][0] == 0.25  # of the last iteration; the first has 0.125
        written = write(record, tmp_path / "docs")
        assert written.stat().st_size < 20_000
        assert load_records("arms", study, tmp_path / "docs") == [record]

    def test_lost_episodes_count_as_unsuccessful(self, tmp_path: Path) -> None:
        """Evaluations that lost one episode of a task, or all, have the same number of episodes."""
        path = record_run(tmp_path, [0.2, 0.5])
        (path / "started.json").write_text(json.dumps({"model": "m", "games": {}}))
        rows = [
            {"iteration": iteration, "split": "valid_seen", "success_rate": 0.5, "by_task": counts}
            for iteration, counts in enumerate(([[0, 2, 1]], [[0, 1, 1], [3, 2, 2]]))
        ]
        append_jsonl(RunDirectory(path).evaluations, rows)
        trial = parse_study(CONTENT, "arms").sweep().trials[0]
        found = make_record("arms", trial, load_run(path), {}).splits["valid_seen"]
        assert (found.episodes, found.successes) == ([2, 2], [[1, 0], [1, 2]])

    def test_runs_without_counts_are_refused(self, tmp_path: Path) -> None:
        trial = parse_study(CONTENT, "arms").sweep().trials[0]
        with pytest.raises(ResultsError, match="no counts per task"):
            make_record("arms", trial, load_run(record_run(tmp_path, [0.2, 0.5])), {})

    @pytest.mark.parametrize(
        ("file", "content", "problem"),
        [
            ("good-seed0.json", {"settings_hash": "old"}, "made with other settings"),
            ("good-seed9.json", {"seed": 9}, "no such trial"),
            ("gone-seed0.json", {"arm": "gone"}, "no such trial"),
            ("bad-seed0.json", {}, "no such trial"),  # the content belongs to another trial
        ],
    )
    def test_records_of_other_settings_are_refused(
        self, tmp_path: Path, file: str, content: dict[str, Any], problem: str
    ) -> None:
        study = parse_study(CONTENT, "arms")
        path = write(synthetic(study, "good", 0), tmp_path)
        old = json.loads(path.read_text())
        path.unlink()
        path.with_name(file).write_text(json.dumps(old | content))
        with pytest.raises(ConfigError, match=f"{file}.*{problem}.*remove"):
            load_records("arms", study, tmp_path)

    def test_other_evaluations_are_refused(self) -> None:
        """Trials of other games, of other tasks, or evaluated after other iterations."""
        study = parse_study(CONTENT, "arms")
        first, second = synthetic(study, "good", 0), synthetic(study, "good", 1)
        split = second.splits["valid_seen"]
        moved = split.model_copy(update={"tasks": [task + 1 for task in split.tasks]})
        for change in (
            {"tasks": {"valid_seen": "x"}},
            {"splits": second.splits | {"valid_seen": moved}},
            {"evaluated": [0, 3, 4]},
        ):
            other = second.model_copy(update=change)
            with pytest.raises(ResultsError, match="good-seed0 and good-seed1"):
                Results(study, [first, other])


def test_every_finished_trial_has_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished trials without a record get one; existing records are not overwritten."""
    study = parse_study(changed(iterations=2), "arms")
    sweep, docs, folder = study.sweep(), tmp_path / "docs", tmp_path / "runs"
    first, second, third = (trial.name for trial in sweep.trials[:3])

    def finish(name: str) -> None:
        RunDirectory(folder / name).path.mkdir(parents=True, exist_ok=True)
        run = RunDirectory(folder / name)
        write_json(run.summary, {})

    def make(study_name: str, trial: Any, run: Any, found: Any) -> Any:
        return synthetic(study, trial.point["arm"], trial.config.seed)

    def train(sweep: Any, folder: Path, record: Any) -> bool:
        assert record_path(docs, "arms", first).is_file(), "before the sweep goes on"
        finish(third)  # stands for a failed callback, which Tune only logs
        return False

    monkeypatch.setattr("hgpo_rllib.studies.run.load_run", lambda path, splits: path)
    monkeypatch.setattr("hgpo_rllib.studies.run.make_record", make)
    monkeypatch.setattr("hgpo_rllib.studies.run.run_sweep", train)
    finish(first)
    finish(second)
    kept = record_path(docs, "arms", second)
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    assert not run_study("arms", "again", sweep, folder, docs)
    found = {path.stem for path in kept.parent.iterdir()}
    assert found == {first, second, third}
    assert kept.read_text() == "kept"


class TestPlan:
    def test_recorded_trials_do_not_run_again(self, tmp_path: Path) -> None:
        """Trials with a record are not planned again, even if their run directories are gone."""
        study = parse_study(CONTENT, "arms")
        records = [synthetic(study, "good", seed) for seed in (0, 2)]
        sweep = plan("arms", study, tmp_path / "runs", records, resume=False)
        names = {trial.name for trial in sweep.trials}
        assert len(names) == 10
        assert not names & {"good-seed0", "good-seed2"}

    def test_finished_trials_in_the_folder_stay_in_the_sweep(self, tmp_path: Path) -> None:
        """Trials with a record and a finished run directory are in the sweep's results."""
        study, folder = parse_study(CONTENT, "arms"), tmp_path / "runs"
        (folder / "good-seed0").mkdir(parents=True)
        write_json(RunDirectory(folder / "good-seed0").summary, {})
        records = [synthetic(study, "good", seed) for seed in (0, 2)]
        sweep = plan("arms", study, folder, records, resume=False)
        names = {trial.name for trial in sweep.trials}
        assert "good-seed0" in names
        assert "good-seed2" not in names

    def test_a_changed_study_is_not_resumed(self, tmp_path: Path) -> None:
        study = parse_study(CONTENT, "arms")
        folder = tmp_path / "runs"
        study.sweep().save(folder)
        with pytest.raises(ConfigError, match="--resume"):
            plan("arms", study, folder, [], resume=False)
        new = parse_study(changed(overrides={"evaluation.interval": 2, "learner.lr": 1}), "arms")
        plan("arms", new, folder, [], resume=True)  # no trial has begun
        (folder / "bad-seed0").mkdir()
        with pytest.raises(
            ConfigError, match=r"bad-seed0 was begun with other settings.*remove it"
        ):
            plan("arms", new, folder, [], resume=True)

    def test_uncommitted_files_are_noted(self, tmp_path: Path) -> None:
        path = folder_with(tmp_path, CONTENT) / "arms.yaml"
        assert is_committed(path), "no repository"
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        assert not is_committed(path)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", "Register"], check=True)
        assert is_committed(path)
        path.write_text("")
        assert not is_committed(path)
        (tmp_path / ".gitignore").write_text("ignored.yaml")
        ignored = path.with_name("ignored.yaml")
        ignored.write_text("")
        assert not is_committed(ignored)
