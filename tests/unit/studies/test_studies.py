"""Study files, records and the page of results, on synthetic trials."""

import datetime
import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hgpo_rllib.bench.fidelity import Result
from hgpo_rllib.config import ConfigError
from hgpo_rllib.results import ResultsError, load_run
from hgpo_rllib.run.directory import RunDirectory
from hgpo_rllib.studies import statistics
from hgpo_rllib.studies.analysis import Results, describe_fidelity, describe_power, fidelity_rows
from hgpo_rllib.studies.records import CURVES, Record, SplitRecord, load_records, make_record
from hgpo_rllib.studies.records import write_record as write
from hgpo_rllib.studies.report import PAGE, load_studies, render, write_report
from hgpo_rllib.studies.run import is_registered, plan
from hgpo_rllib.studies.settings import STUDIES, Study, load_study, parse_study, settings_hash
from tests.paths import ROOT
from tests.unit.cli.test_cli import assert_is_refusal, hgpo
from tests.unit.results.test_results import record as record_run

TASKS = 40
SPLITS = {"valid_seen": range(TASKS // 2), "valid_unseen": range(TASKS // 2)}
EVALUATED = [0, 2, 4]
CONTENT: dict[str, Any] = {
    "title": "Two arms",
    "question": "Is the first one better?",
    "base": "alfworld_pocket",
    "iterations": 4,
    "splits": [*SPLITS],
    "seeds": 4,
    "overrides": {"evaluation.interval": 2},
    "arms": {
        "good": {"algorithm.estimator": "hgpo"},
        "bad": {"algorithm.estimator": "grpo"},
        "other": {"algorithm.estimator": "rloo"},
    },
    "analysis": {
        "baseline": "bad",
        "claims": [
            {"text": "Good is better.", "a": "good", "b": "bad"},
            {"text": "Bad is better.", "a": "bad", "b": "good", "measure": "area"},
            {"text": "The two are equal.", "a": "other", "b": "bad"},
        ],
    },
}  # fmt: skip
SUCCESS = {"good": 0.8, "bad": 0.4, "other": 0.41}


def changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(CONTENT | changes))


def claiming(**changes: str) -> dict[str, Any]:
    claim = {"text": "C", "a": "good", "b": "bad"} | changes
    return changed(analysis={"claims": [claim]})


def folder_with(tmp_path: Path, content: Mapping[str, Any]) -> Path:
    folder = tmp_path / "studies"
    folder.mkdir(exist_ok=True)
    (folder / "arms.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folder


def synthetic(study: Study, arm: str, seed: int, success: float | None = None) -> Record:
    """Make up a trial that starts at 30 % and ends at this success, or at that of its arm."""
    success = SUCCESS[arm] if success is None else success
    rng = np.random.default_rng([seed, *arm.encode()])
    rates = 0.3 + np.linspace(0, 1, len(EVALUATED))[:, None] * (success - 0.3)
    splits = {
        split: SplitRecord(
            tasks=list(tasks),
            episodes=[2] * len(tasks),
            successes=rng.binomial(2, rates, (len(EVALUATED), len(tasks))).tolist(),
        )
        for split, tasks in SPLITS.items()
    }
    return Record(
        study="arms",
        arm=arm,
        seed=seed,
        settings_hash=settings_hash(study.config(arm, seed)),
        commit="0123456789abcdef",
        versions={"numpy": "2"},
        initial_model="m",
        tasks=dict.fromkeys(SPLITS, "t"),
        iterations=4,
        training={name: [0.1, 0.2, None, 0.4] for name in CURVES},
        evaluated=EVALUATED,
        splits=splits,
        diagnostics={"level_fraction_k0": 0.9, "oracle_gap_hgpo": None, "advantage_s": 0.0123},
        group_sizes={"0": [0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1]},
        seconds={"training": 12.5},
    )


def finish(study: Study, docs: Path, arms: Mapping[str, int]) -> None:
    """Record this many seeds of each arm."""
    for arm, seeds in arms.items():
        for seed in range(seeds):
            write(synthetic(study, arm, seed), docs)


ALL = {"good": 4, "bad": 4, "other": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Results:
    docs = tmp_path_factory.mktemp("docs")
    study = parse_study(CONTENT, "arms")
    finish(study, docs, ALL)
    return Results(study, load_records("arms", study, docs))


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
            (changed(analysis={"baseline": "none"}), ["no arm 'none'"]),
            (changed(seeds=0), ["seeds", "at least one"]),
            (changed(seeds=[1, 1]), ["seeds", "each once"]),
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
                changed() | {"arms": {"a": {"name": datetime.date(2024, 1, 1)}}, "analysis": {}},
                ["arm a", "date is not JSON"],
            ),
            ([], ["arms.yaml", "valid dictionary"]),
        ],
    )
    def test_bad_files(self, tmp_path: Path, content: Any, named: list[str]) -> None:
        """Exit code 2 and one line that names the thing, from every command."""
        folder = folder_with(tmp_path, content)
        work = tmp_path / "work"
        work.mkdir()
        for number, arguments in enumerate(
            (["power", str(folder / "arms.yaml")], ["report", "--studies", str(folder)])
        ):
            inside = work / str(number)
            inside.mkdir()
            assert_is_refusal(hgpo(inside, "study", *arguments), [*named])
            assert list(inside.iterdir()) == []

    def test_not_text(self, tmp_path: Path) -> None:
        path = tmp_path / "arms.yaml"
        path.write_bytes(b"title: \xff")
        with pytest.raises(ConfigError, match=r"arms.yaml is not YAML: 'utf-8' codec"):
            load_study(path)

    def test_unknown_study(self, tmp_path: Path) -> None:
        assert_is_refusal(hgpo(tmp_path, "study", "run", "nothing"), ["no study nothing"])

    def test_the_hash_is_of_what_affects_results(self) -> None:
        study = parse_study(CONTENT, "arms")
        config = study.config("good", 0)
        elsewhere = config.model_copy(update={"output": "x", "cache": "y", "name": "z"})
        assert settings_hash(elsewhere) == settings_hash(config)
        others = {settings_hash(study.config(arm, seed)) for arm in study.arms for seed in (0, 1)}
        assert len(others) == 6


class TestRecords:
    def test_from_a_run_directory(self, tmp_path: Path) -> None:
        """Counts per task, curves and diagnostics; small; the same after reading."""
        study = parse_study(changed(iterations=2), "arms")
        trial = study.sweep().trials[0]
        path = record_run(tmp_path, [0.2, 0.5, 0.6])
        run = RunDirectory(path)
        (path / "started.json").write_text(
            json.dumps({"model": "m" * 64, "games": {"valid_seen": "g" * 64}})
        )
        rows = [
            {"iteration": iteration, "split": split, "by_task": [[0, 2, iteration], [3, 2, 1]]}
            for iteration in (0, 2)
            for split in SPLITS
        ]
        run.append(run.evaluations, [row | {"success_rate": 0.5} for row in rows])
        record = make_record("arms", trial, load_run(path), "c", {"numpy": "2"})
        assert record.evaluated == [0, 2]
        found = record.splits["valid_unseen"]
        assert (found.tasks, found.episodes, found.successes) == ([0, 3], [2, 2], [[0, 1], [2, 1]])
        assert record.training["success_rate"] == [0.25, 0.3]
        assert record.diagnostics["level_fraction_k1"] == 0.5
        assert record.group_sizes["0"][-1] == 0.25
        written = write(record, tmp_path / "docs")
        assert written.stat().st_size < 20_000
        assert load_records("arms", study, tmp_path / "docs") == [record]

    def test_runs_without_counts_are_refused(self, tmp_path: Path) -> None:
        trial = parse_study(CONTENT, "arms").sweep().trials[0]
        with pytest.raises(ResultsError, match="no counts per task"):
            make_record("arms", trial, load_run(record_run(tmp_path, [0.2, 0.5])), None, {})

    @pytest.mark.parametrize(
        ("file", "content", "problem"),
        [
            ("good-seed0.json", {"settings_hash": "old"}, "made with other settings"),
            ("good-seed9.json", {"seed": 9}, "no such trial"),
            ("gone-seed0.json", {"arm": "gone"}, "no such trial"),
            ("bad-seed0.json", {}, "no such trial"),  # whose content is of another
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

    def test_other_tasks_are_refused(self) -> None:
        study = parse_study(CONTENT, "arms")
        first, second = synthetic(study, "good", 0), synthetic(study, "good", 1)
        other = second.model_copy(update={"tasks": {"valid_seen": "x"}})
        with pytest.raises(ResultsError, match="good-seed0 and good-seed1"):
            Results(study, [first, other])


class TestPlan:
    def test_recorded_trials_do_not_run_again(self, tmp_path: Path) -> None:
        """Their run directories are not needed."""
        study = parse_study(CONTENT, "arms")
        records = [synthetic(study, "good", seed) for seed in (0, 2)]
        sweep = plan("arms", study, tmp_path / "runs", records, resume=False)
        names = {trial.name for trial in sweep.trials}
        assert len(names) == 10
        assert not names & {"good-seed0", "good-seed2"}

    def test_a_changed_study_is_not_resumed(self, tmp_path: Path) -> None:
        study = parse_study(CONTENT, "arms")
        folder = tmp_path / "runs"
        study.sweep().save(folder)
        with pytest.raises(ConfigError, match="--resume"):
            plan("arms", study, folder, [], resume=False)
        new = parse_study(changed(overrides={"evaluation.interval": 2, "learner.lr": 1}), "arms")
        plan("arms", new, folder, [], resume=True)  # nothing has begun
        (folder / "bad-seed0").mkdir()
        with pytest.raises(
            ConfigError, match=r"bad-seed0 was begun with other settings.*remove it"
        ):
            plan("arms", new, folder, [], resume=True)

    def test_uncommitted_files_are_noted(self, tmp_path: Path) -> None:
        path = folder_with(tmp_path, CONTENT) / "arms.yaml"
        assert is_registered(path), "no repository"
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "--quiet"], check=True)
        assert not is_registered(path)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", "Register"], check=True)
        assert is_registered(path)
        path.write_text("")
        assert not is_registered(path)
        (tmp_path / ".gitignore").write_text("ignored.yaml")
        ignored = path.with_name("ignored.yaml")
        ignored.write_text("")
        assert not is_registered(ignored)


class TestAnalysis:
    def test_differences_are_paired(self, finished: Results) -> None:
        """The value is the difference of the means; seeds that one arm lacks do not count."""
        study = finished.study
        found = finished.difference("good", "bad", "final")
        means = [
            statistics.run_scores(statistics.pool(finished.scores(arm, "final"))).mean()
            for arm in ("good", "bad")
        ]
        assert found.value == pytest.approx(means[0] - means[1])
        assert found.seeds == 4
        fewer = [r for r in finished.records if r.arm == "good" or r.seed < 3]
        assert Results(study, fewer).difference("good", "bad", "final").seeds == 3
        only = [r for r in finished.records if r.arm == "good"]
        assert math.isnan(Results(study, only).difference("good", "bad", "final").value)

    def test_fidelity_and_success(self, tmp_path: Path) -> None:
        """By rank; only arms that set nothing but an estimator whose fidelity was measured."""
        fidelity = {"good": 9, "bad": 0.5, "other": 0.2, "fourth": 0}
        names = dict(zip(fidelity, ("hgpo", "grpo", "rloo", "gigpo"), strict=True))
        arms = {arm: {"algorithm.estimator": name} for arm, name in names.items()}
        more = {"ppo": {"algorithm.estimator": "g2po"}, "kl": arms["bad"] | {"learner.kl_coeff": 1}}
        analysis = {"baseline": "good", "fidelity": "measured"}
        content = changed(arms=arms | more, analysis=analysis)
        study = parse_study(content, "arms")
        success = SUCCESS | {"other": 0.6, "fourth": 0.1, "ppo": 0.9, "kl": 0.9}
        records = [synthetic(study, arm, seed, success[arm]) for arm in success for seed in (0, 1)]
        rng = np.random.default_rng(0)
        truth, noise = rng.normal(size=(2, 64))
        measured = Result(
            protocol={},
            group=[*range(64)],
            member=[0] * 64,
            time=[0] * 64,
            q=truth.tolist(),
            v=[0.0] * 64,
            error=[0.0] * 64,
            estimates={names[a]: (c * truth + noise).tolist() for a, c in fidelity.items()},
            levels={},
            sizes={},
        )
        docs = tmp_path / "docs"
        for record in records:
            write(record, docs)
        folder = folder_with(tmp_path, content)
        with pytest.raises(ConfigError, match=r"cannot read .*credit/measured.json"):
            load_studies(docs, folder)
        (docs / "results/credit").mkdir()
        (docs / "results/credit/measured.json").write_text(measured.model_dump_json())
        (results,) = load_studies(docs, folder).values()
        assert [row["arm"] for row in fidelity_rows(results)] == [f"`{arm}`" for arm in fidelity]
        line = describe_fidelity(results)
        assert line is not None
        # Ranks 1, 2, 3, 4 and 1, 3, 2, 4; Fisher: tanh(artanh(0.8) ± 1.96 / √(4 - 3)).
        assert line.endswith("0.80 (-0.70 … 1.00).")
        page, *_, figure = write_report(docs, folder)
        assert line in page.read_text()
        assert "| `good` | 0.9" in page.read_text()
        assert figure.name == "differences.png"
        few = [r for r in results.records if r.arm != "good"]
        assert describe_fidelity(Results(study, few, measured)) is None
        assert fidelity_rows(Results(study, results.records)) == []

    def test_power_line(self, finished: Results) -> None:
        study = finished.study
        assumed = describe_power(study, [])
        assert "14 seeds per arm are needed" in assumed
        assert "6.0 points (assumed in the study file)" in assumed
        assert "from 8 pairs of finished trials" in describe_power(study, finished.records)
        small = parse_study(changed(analysis={"difference": 0.005}), "arms")
        assert "more than 1,000 seeds per arm or more held-out tasks" in describe_power(small, [])


class TestReport:
    def test_no_finished_trial(self, tmp_path: Path) -> None:
        folder = folder_with(tmp_path, CONTENT)
        (written,) = write_report(tmp_path / "docs", folder)
        assert "No finished trial (3 arms, 4 seeds, 4 iterations" in written.read_text()

    def test_the_page(self, finished: Results, tmp_path: Path) -> None:
        """Tables and verdicts, and figures that the page shows."""
        folder, docs = folder_with(tmp_path, CONTENT), tmp_path / "docs"
        finish(finished.study, docs, ALL)
        page, *figures = write_report(docs, folder, "arms")
        text = page.read_text()
        for part in (
            "12 trials (3 arms, 4 seeds",
            "20 tasks of `valid_seen`, 20 tasks of `valid_unseen`. ",
            "Episodes per task and evaluation: 2.",
            "Initial models: 1.",
            "`0123456789ab` (12 trials)",
            "| `level_fraction_k0` | 90.0 % | 90.0 % | 90.0 % |",
            "| `advantage_s` | 0.0123 s |",
            "| `good` | 0 | 10.0 % | 20.0 % | 30.0 % |",
        ):
            assert part in text
        summary, section = text.split("## Two arms")
        expected = ["**holds here** |", "**does not hold** |", "**cannot be told** |"]
        for part, first in ((summary, "| [Two arms](#two-arms) | "), (section, "| ")):
            claims = [first + claim["text"] for claim in CONTENT["analysis"]["claims"]]
            rows = [line for line in part.splitlines() if line.startswith(tuple(claims))]
            assert [row.split(" | ")[-1] for row in rows] == expected
        names = ["success.png", "training.png", "differences.png"]
        assert [file.name for file in figures] == names
        for file in figures:
            assert f"({file.relative_to(docs)})" in text
            assert file.read_bytes().startswith(b"\x89PNG")

    def test_incomplete_studies(self, tmp_path: Path) -> None:
        """One arm with two seeds and one with one: numbers without intervals where needed."""
        study = parse_study(CONTENT, "arms")
        finish(study, tmp_path, {"good": 2, "bad": 1})
        text = render({"arms": Results(study, load_records("arms", study, tmp_path))})
        assert "incomplete: 3 of 12 trials have finished" in text
        assert "| `good` | 2 |" in text
        assert "| `bad` | 1 |" in text
        assert "`other`" not in text.partition("Claims:")[0]
        claims = [line for line in text.splitlines() if "better. |" in line]
        assert all(line.endswith("| incomplete |") for line in claims)
        assert claims
        assert "## Verdicts" not in text

    def test_the_same_bytes_again(self, finished: Results, tmp_path: Path) -> None:
        """Whatever the order of the files."""
        docs = tmp_path / "docs"
        for record in reversed(finished.records):
            write(record, docs)
        loaded = load_studies(docs, folder_with(tmp_path, CONTENT))
        assert render(loaded) == render({"arms": finished})

    def test_the_committed_page(self) -> None:
        """`hgpo study report` was run after the last change of a record or of a study."""
        committed = (ROOT / "docs" / PAGE).read_text()
        assert render(load_studies(ROOT / "docs")) == committed

    def test_a_folder_without_studies(self, tmp_path: Path) -> None:
        """Leaves the page of others alone."""
        (tmp_path / PAGE).write_text("page")
        for folder in (tmp_path, tmp_path / "missing"):
            with pytest.raises(ConfigError, match=f"--studies: {folder} holds no study"):
                write_report(tmp_path, folder)
        assert (tmp_path / PAGE).read_text() == "page"

    def test_unknown_name(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no study nothing"):
            write_report(tmp_path, folder_with(tmp_path, CONTENT), "nothing")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_committed_studies(path: Path) -> None:
    load_study(path).sweep()
