"""The analysis of a study and the page of its results, on synthetic trials."""

import math
from pathlib import Path

import numpy as np
import pytest

from hgpo_rllib.bench.fidelity import Result
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.reporting.numbers import MISSING
from hgpo_rllib.studies import report, statistics
from hgpo_rllib.studies.analysis import (
    Results,
    arm_rows,
    baseline_rows,
    claim_rows,
    describe_fidelity,
    describe_power,
    diagnostic_rows,
    fidelity_rows,
    size_rows,
)
from hgpo_rllib.studies.records import load_records
from hgpo_rllib.studies.records import write_record as write
from hgpo_rllib.studies.report import PAGE, load_studies, render, write_report
from hgpo_rllib.studies.settings import parse_study
from tests.paths import ROOT
from tests.unit.cli.command import assert_is_refusal, run_hgpo
from tests.unit.studies.synthetic import CONTENT, SUCCESS, changed, finish, folder_with, synthetic

ALL = {"good": 4, "bad": 4, "other": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Results:
    docs = tmp_path_factory.mktemp("docs")
    study = parse_study(CONTENT, "arms")
    finish(study, docs, ALL)
    return Results(study, load_records("arms", study, docs))


class TestAnalysis:
    def test_differences_are_paired(self, finished: Results) -> None:
        """The difference is that of the means; seeds that only one arm has are ignored."""
        study = finished.study
        found = finished.difference("good", "bad", measure="final")
        means = [
            statistics.run_scores(finished.scores(arm, "final")).mean() for arm in ("good", "bad")
        ]
        assert found.value == pytest.approx(means[0] - means[1])
        assert found.seeds == 4
        fewer = [r for r in finished.records if r.arm == "good" or r.seed < 3]
        assert Results(study, fewer).difference("good", "bad", measure="final").seeds == 3
        only = [r for r in finished.records if r.arm == "good"]
        assert math.isnan(Results(study, only).difference("good", "bad", measure="final").value)

    def test_times_are_compared_with_the_baseline(self, finished: Results) -> None:
        """An iteration of the good arm takes half more time, so less is learned in equal time."""
        good, other = baseline_rows(finished)
        assert (good["time of an iteration"], other["time of an iteration"]) == ("× 1.50", "× 0.80")
        mean = (0.1 * 15 + 0.15 * 15 + (0.2 + 0.8 / 3) / 2 * 10) / 40
        baseline = (0.1 * 10 + 0.25 * 30) / 40
        found = float(good["training, equal time (points)"].split()[0])
        assert found == pytest.approx(100 * (mean - baseline), abs=0.1)
        only = [r for r in finished.records if (r.arm == "bad") == (r.seed == 0)]
        row = baseline_rows(Results(finished.study, only))[0]
        assert row["time of an iteration"] == row["training, equal time (points)"] == MISSING

    def test_difference_in_differences(self, finished: Results) -> None:
        """A difference of differences is paired by seed and task."""
        arms = ("good", "bad", "other", "bad")
        found = finished.difference(*arms, measure="final")
        simple = finished.difference("good", "other", measure="final")
        assert found.value == pytest.approx(simple.value)
        assert (found.low, found.high) == pytest.approx((simple.low, simple.high))
        claim = {"text": "More.", "a": "good", "b": "bad", "minus": ["other", "bad"]}
        study = parse_study(changed(analysis={"claims": [claim]}), "arms")
        (row,) = claim_rows(Results(study, finished.records))
        assert (row["A"], row["B"]) == ("`good` − `bad`", "`other` − `bad`")
        assert row["A − B (points)"].startswith(f"{100 * simple.value:+.1f} (")

    def test_median_gain(self, finished: Results) -> None:
        """The median is over runs, each with the gain over all tasks of both splits."""
        gains = []
        for record in finished.of("good"):
            counts = np.concatenate([s.successes for s in record.splits.values()], axis=1)
            gains.append(100 * (counts[-1] - counts[0]).mean() / 2)
        (row,) = [row for row in arm_rows(finished) if row["arm"] == "`good`"]
        middle = sorted(gains)[1:3]
        assert len(set(gains)) > 2
        assert row["median gain (points)"] == f"+{sum(middle) / 2:.1f}"

    def test_fidelity_and_success(self, tmp_path: Path) -> None:
        """Ranks are compared for arms that set only an estimator whose fidelity was measured."""
        fidelity = {"good": 9, "bad": 0.5, "other": 0.2, "fourth": 0}
        names = dict(zip(fidelity, ("hgpo", "grpo", "rloo", "gigpo"), strict=True))
        arms = {arm: {"algorithm.estimator": name} for arm, name in names.items()}
        more = {"ppo": {"algorithm.estimator": "g2po"}, "kl": arms["bad"] | {"learner.kl_coeff": 1}}
        analysis = {"baseline": "good", "fidelity": "measured"}
        content = changed(arms=arms | more, analysis=analysis, seeds=2)
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
        # Ranks 1, 2, 3, 4 and 1, 3, 2, 4: tanh(artanh(0.8) ± 1.96 √((1 + 0.8²/2) / (4 - 3))).
        assert line.endswith("0.80 (-0.82 … 1.00).")
        page, *_, figure = write_report(docs, folder)
        assert line in page.read_text()
        assert "| `good` | 0.9" in page.read_text()
        assert figure.name == "differences.png"
        assert describe_fidelity(Results(study, results.records[1:], measured)) is None
        six = parse_study(content | {"seeds": 6}, "arms")
        # With seed 0, which "good" lacks, the ranks would be others.
        records = [
            synthetic(six, arm, seed, success[arm] if seed else 1 - success[arm])
            for arm in success
            for seed in range(arm == "good", 6)
        ]
        five = describe_fidelity(Results(six, records, measured))
        assert five == line.replace("2 seeds", "5 seeds")
        fewer = [record for record in records if record.trial != "bad-seed1"]
        assert describe_fidelity(Results(six, fewer, measured)) is None
        assert fidelity_rows(Results(study, results.records)) == []
        rates = {"good": 0.8, "bad": 0.6, "other": 0.4, "fourth": 0.1}
        ordered = [synthetic(study, a, s, rates.get(a, 0.9)) for a in success for s in (0, 1)]
        equal_orders = describe_fidelity(Results(study, ordered, measured))
        assert equal_orders is not None
        assert equal_orders.endswith("with 2 seeds of each: 1.00.")
        equal = [record.model_copy(update={"splits": ordered[0].splits}) for record in ordered]
        assert describe_fidelity(Results(study, equal, measured)) is None

    def test_power_line(self, finished: Results) -> None:
        study = finished.study
        assumed = describe_power(study, [])
        assert "(two-sided, at 1.67 %: 5 % divided by the number of claims)" in assumed
        assert "19 seeds per arm are needed" in assumed
        assert "6.0 points (assumed in the study file)" in assumed
        assert "from 8 pairs of finished trials" in describe_power(study, finished.records)
        small = parse_study(changed(analysis={"difference": 0.005}), "arms")
        assert "even 1,000 seeds per arm are not enough" in describe_power(small, [])


class TestReport:
    def test_no_finished_trial(self, tmp_path: Path) -> None:
        folder = folder_with(tmp_path, CONTENT)
        (written,) = write_report(tmp_path / "docs", folder)
        assert "No finished trial (3 arms, 4 seeds, 4 iterations" in written.read_text()

    def test_the_page(self, finished: Results, tmp_path: Path) -> None:
        """The page has tables and verdicts, and links all figures."""
        folder, docs = folder_with(tmp_path, CONTENT), tmp_path / "docs"
        finish(finished.study, docs, ALL)
        page, *figures = write_report(docs, folder, "arms")
        text = page.read_text()
        for part in (
            "12 trials (3 arms, 4 seeds",
            "20 tasks of `valid_seen`, 20 tasks of `valid_unseen`. ",
            "Episodes per task and evaluation: 2.",
            "Initial models: 1.",
            "Trials by commit: `0123456789ab` 12.",
            "| `level_fraction_k0` | 90.0 % | 90.0 % | 90.0 % |",
            "| `tokens_generated` | 12,345 |",
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

    def test_figures_show_the_trials(self, finished: Results, tmp_path: Path) -> None:
        """Leaving out a seed changes the figures of success and differences."""
        folder, drawn = folder_with(tmp_path, CONTENT), []
        for seeds in (4, 3):
            docs = tmp_path / str(seeds)
            finish(finished.study, docs, dict.fromkeys(ALL, seeds))
            drawn.append({file.name: file.read_bytes() for file in write_report(docs, folder)[1:]})
        for name in ("success.png", "differences.png"):
            assert drawn[0][name] != drawn[1][name]

    def test_only_the_baseline_has_finished(self, tmp_path: Path) -> None:
        """There is nothing to compare, so there is no figure of differences."""
        docs = tmp_path / "docs"
        finish(parse_study(CONTENT, "arms"), docs, {"bad": 1})
        _, *figures = write_report(docs, folder_with(tmp_path, CONTENT))
        assert [file.name for file in figures] == ["success.png", "training.png"]

    def test_bands_of_the_figures(self, finished: Results) -> None:
        """Bands are one standard error over seeds, those of held-out success 95 % intervals."""
        records = [
            r.model_copy(update={"training": {"kl": [r.seed / 10, 1.0, None, 2.0]}})
            for r in finished.records
        ]
        metric = report._metric(Results(finished.study, records), "kl").lines[0].values
        assert metric.index.tolist() == [1, 2, 3, 4]
        error = np.std([0, 0.1, 0.2, 0.3], ddof=1) / 2
        assert metric.loc[1].tolist() == pytest.approx([0.15, error])
        held_out = report._held_out(finished).lines[0].values
        assert held_out.index.tolist() == [0, 2, 4]
        last = statistics.estimate(finished.scores("good", "final"))
        assert held_out.loc[4].tolist() == pytest.approx([last.value, last.high - last.value])

    def test_many_arms(self) -> None:
        """With many arms, only those of the claims have curves and diagnostics."""
        names = [f"arm{number}" for number in range(11)]
        claims = [{"text": "One is better.", "a": "arm1", "b": "arm3"}]
        study = parse_study(
            changed(arms={name: {} for name in names}, analysis={"claims": claims}), "arms"
        )
        records = [synthetic(study, arm, 0, 0.5) for arm in names]
        assert Results(study, records[:8]).detailed_arms == names[:8]
        results = Results(study, records)
        assert results.detailed_arms == ["arm1", "arm3"]
        assert [*diagnostic_rows(results)[0]] == ["metric", "`arm1`", "`arm3`"]
        assert {row["arm"] for row in size_rows(results)} == {"`arm1`", "`arm3`"}
        others = [record for record in records if record.arm not in ("arm1", "arm3")]
        assert len(Results(study, others).detailed_arms) == 9

    def test_incomplete_studies(self, tmp_path: Path) -> None:
        """Incomplete arms have numbers without intervals, and their claims no p-values."""
        study = parse_study(CONTENT, "arms")
        finish(study, tmp_path, {"good": 2, "bad": 1})
        text = render({"arms": Results(study, load_records("arms", study, tmp_path))})
        assert "incomplete: 3 of 12 trials have finished" in text
        assert "| `good` | 2 |" in text
        assert "| `bad` | 1 |" in text
        assert "`other`" not in text.partition("Claims:")[0]
        claims = [line for line in text.splitlines() if "better. |" in line]
        assert all(line.endswith("|  |  | incomplete |") for line in claims), "without p-values"
        assert claims
        assert "## Verdicts" not in text

    def test_arms_without_claims(self, tmp_path: Path) -> None:
        """Claims have verdicts as soon as the trials of their arms have finished."""
        study = parse_study(changed(analysis={"claims": CONTENT["analysis"]["claims"][:2]}), "arms")
        finish(study, tmp_path, ALL | {"other": 3})
        records = load_records("arms", study, tmp_path)
        text = render({"arms": Results(study, records)})
        assert "incomplete: 11 of 12 trials have finished" in text
        assert text.count("**holds here**") == 2, "in the section, and in the table of all studies"
        fewer = [r for r in records if (r.arm, r.seed) != ("bad", 1)]
        assert "## Verdicts" not in render({"arms": Results(study, fewer)})

    def test_the_same_bytes_again(self, finished: Results, tmp_path: Path) -> None:
        """The page does not depend on the order of the records, nor on writing and reading them."""
        docs = tmp_path / "docs"
        for record in reversed(finished.records):
            write(record, docs)
        loaded = load_studies(docs, folder_with(tmp_path, CONTENT))
        assert render(loaded) == render({"arms": finished})
        reverse = Results(finished.study, finished.records[::-1])
        assert render({"arms": reverse}) == render({"arms": finished})

    def test_the_committed_page(self) -> None:
        """The committed page is up to date with all records and studies."""
        committed = (ROOT / "docs" / PAGE).read_text()
        assert render(load_studies(ROOT / "docs")) == committed

    def test_a_folder_without_studies(self, tmp_path: Path) -> None:
        """The error leaves an existing page unchanged."""
        (tmp_path / PAGE).write_text("page")
        for folder in (tmp_path, tmp_path / "missing"):
            with pytest.raises(ConfigError, match=f"--studies: {folder} holds no study"):
                write_report(tmp_path, folder)
        assert (tmp_path / PAGE).read_text() == "page"

    def test_unknown_name(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no study nothing"):
            write_report(tmp_path, folder_with(tmp_path, CONTENT), "nothing")

    def test_arguments_of_the_command(self, tmp_path: Path) -> None:
        """A study can be named by its file; a `docs` that is no folder is refused."""
        folder = folder_with(tmp_path, CONTENT)
        report = ("study", "report", f"{folder}/arms.yaml", "--studies", str(folder))
        good, bad = tmp_path / "good", tmp_path / "bad"
        good.mkdir()
        assert run_hgpo(good, *report).returncode == 0
        bad.mkdir()
        (bad / "docs").touch()
        assert_is_refusal(run_hgpo(bad, *report), ["cannot write docs: "])
