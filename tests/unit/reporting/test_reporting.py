"""The report of a run: the files it reads and the numbers it contains."""

import json
import math
import re
from pathlib import Path

import pytest

from hgpo_rllib.reporting import report
from hgpo_rllib.reporting.numbers import duration, number, percent, points
from hgpo_rllib.reporting.report import write_report
from hgpo_rllib.results import ResultsError
from tests.unit.reporting.reporting_rows import (
    PROMPT,
    crash,
    evaluation_row,
    make_run,
    metrics_row,
    write_jsonl,
)


@pytest.fixture
def without_plots(monkeypatch):
    """Skip the plots, which take seconds and have their own tests."""
    monkeypatch.setattr(
        report, "pictures", lambda experiments: {"speed.png": b"PNG", "training.png": b""}
    )


def text_of(html):
    """Return the page without markup and images, with white space collapsed."""
    body = html.split("<body>")[1]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


class TestNumbers:
    @pytest.mark.parametrize("value", [None, math.nan, math.inf, "1", [[0.5, 0.5]]])
    def test_what_is_not_a_finite_number_is_missing(self, value):
        assert math.isnan(number({"x": value}, "x"))
        assert math.isnan(number({}, "x"))

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (4.21, "4.2 s"),
            (59.97, "1 min 00 s"),
            (185, "3 min 05 s"),
            (7620, "2 h 07 min"),
        ],
    )
    def test_durations(self, seconds, text):
        assert duration(seconds) == text

    def test_rates_and_differences(self):
        assert percent(0.3433, 0.041) == "34.3 % ± 4.1"
        assert points(-0.05) == "-5.0"
        assert points(-2e-17) == points(0.0) == "+0.0"
        assert percent(math.nan) == points(math.nan) == duration(math.nan) == "n/a"


@pytest.mark.usefixtures("without_plots")
class TestReport:
    def test_before_after_and_difference(self, run_dir):
        path = write_report([run_dir])
        assert path == run_dir / "report.html"
        text = text_of(path.read_text())
        assert "4 iterations · 4,000 environment steps in training · 1 min 20 s" in text
        assert "all held-out 100 20.0 % ± 3.0 36.0 % ± 4.0 +16.0 ± 5.0" in text
        assert "100 episodes at temperature 0.40" in text
        assert "may be chance" not in text
        assert "is the last evaluation" not in text
        assert "not finished" not in text

    @pytest.mark.parametrize(
        ("clock", "took", "total"),
        [
            ((20.0, 40.0, 15.0, 30.0), (20.0, 20.0, 15.0, 15.0), "1 min 10 s"),
            ((20.0, 40.0, 45.0, 60.0), (20.0, 20.0, 45.0, 15.0), "1 min 40 s"),
        ],
    )
    def test_the_duration_of_a_resumed_run(self, run_dir, clock, took, total):
        """The duration of a resumed run includes the time before `wall_s` restarted at 0."""
        rows = [
            metrics_row(number) | {"wall_s": at, "iteration_s": seconds}
            for number, (at, seconds) in enumerate(zip(clock, took, strict=True), 1)
        ]
        write_jsonl(run_dir / "metrics.jsonl", rows)
        assert f"in training · {total}" in text_of(write_report([run_dir]).read_text())

    def test_tables(self, run_dir):
        text = text_of(write_report([run_dir]).read_text())
        assert "valid_unseen 40 20.0 % ± 3.0 36.0 % ± 4.0 +16.0 ± 5.0" in text
        # sqrt(0.2 * 0.8 / 25) = 0.08, sqrt(0.36 * 0.64 / 25) = 0.096, together 0.125.
        assert "pick and place 20.0 % ± 8.0 36.0 % ± 9.6 +16.0 ± 12.5" in text
        assert "rollout 36.0 s 9.0 s 60.0 %" in text

    def test_a_small_difference_is_called_what_it_is(self, tmp_path):
        text = text_of(write_report([make_run(tmp_path / "run", 0.2, 0.29)]).read_text())
        assert "+9.0 ± 5.0" in text
        assert "may be chance" in text

    def test_an_evaluation_before_the_last_iteration_is_named(self, run_dir):
        rows = [evaluation_row(i, "all", rate, 0.03, 100) for i, rate in ((0, 0.2), (2, 0.4))]
        write_jsonl(run_dir / "evaluation.jsonl", rows)
        text = text_of(write_report([run_dir]).read_text())
        assert "is the last evaluation, after iteration 2." in text

    def test_what_models_write_is_escaped(self, run_dir):
        html = write_report([run_dir]).read_text()
        assert "# &lt;weight&gt;" in html
        assert "<think>" not in html.partition("<script>")[0]
        data = re.search(r'id="episode-data">(.*?)</script>', html, re.DOTALL)
        assert json.loads(data[1])[0]["groups"][0]["members"][0]["steps"][0]["prompt"] == PROMPT
        assert html.count("<script") == 2

    def test_a_crashed_run(self, run_dir):
        text = text_of(write_report([crash(run_dir)]).read_text())
        assert "1 iterations · 1,000 environment steps in training · 20.0 s · not finished" in text
        assert "No held-out evaluation was recorded." in text
        assert "still running or was stopped early" in text
        for nothing in ("n/a", "By split", "Episodes "):
            assert nothing not in text.partition("Configuration")[0]

    def test_a_failed_write_keeps_the_old_report(self, run_dir, monkeypatch):
        path = write_report([run_dir])
        old = path.read_bytes()

        def fail(self, target):
            raise OSError("disk full")

        monkeypatch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_report([run_dir])
        assert path.read_bytes() == old
        assert not [p for p in run_dir.rglob(".*") if p.is_file()]


@pytest.mark.usefixtures("without_plots")
class TestSeveralRuns:
    def test_seeds(self, tmp_path):
        rates = [(0.1, 0.5), (0.2, 0.3), (0.3, 0.4)]
        runs = [make_run(tmp_path / f"s{i}", *pair, seed=i) for i, pair in enumerate(rates)]
        path = write_report(runs, tmp_path / "out" / "seeds.html")
        assert path == tmp_path / "out" / "seeds.html"
        assert (tmp_path / "out" / "seeds_plots" / "speed.png").read_bytes() == b"PNG"
        assert not any((run / "report.html").exists() for run in runs)
        text = text_of(path.read_text())
        # Before 10, 20, 30 and after 50, 30, 40: standard deviation 10, over sqrt(3) is 5.8.
        # Differences 40, 10, 10: mean 20, standard deviation sqrt(600 / 2), over sqrt(3) is 10.
        assert "3 seeds of one experiment" in text
        assert "all held-out 100 20.0 % ± 5.8 40.0 % ± 5.8 +20.0 ± 10.0" in text
        assert "s1 1 4 4 100 20.0 % ± 3.0 30.0 % ± 4.0 +10.0 ± 5.0" in text
        assert "Differences between the curves" not in text

    def test_settings_side_by_side(self, tmp_path):
        runs = [
            make_run(tmp_path / f"{name}-{seed}", after=0.5 + 0.1 * seed, seed=seed, estimator=name)
            for name in ("hgpo", "grpo")
            for seed in range(1 + (name == "hgpo"))
        ]
        text = text_of(write_report(runs, tmp_path / "x.html").read_text())
        assert "2 curves of 3 runs" in text
        assert "hgpo 2 20.0 % ± 0.0 55.0 % ± 5.0 +35.0 ± 5.0" in text
        assert "grpo 1 20.0 % ± 3.0 50.0 % ± 4.0 +30.0 ± 5.0" in text
        assert "setting hgpo grpo algorithm.estimator hgpo grpo" in text
        assert "config.yaml of grpo" in text

    def test_a_crashed_run_among_others(self, tmp_path):
        runs = [make_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
        crash(runs[1])
        text = text_of(write_report(runs, tmp_path / "x.html").read_text())
        assert "all held-out 100 20.0 % 36.0 % +16.0" in text
        assert "The runs of small ended at different iterations" in text
        assert "1 1 1 n/a n/a n/a n/a n/a" in text

    def test_a_folder_of_runs(self, tmp_path):
        sweep = tmp_path / "sweep"
        for seed in range(2):
            make_run(sweep / f"0{seed}", seed=seed)
        (sweep / "02").mkdir()
        (sweep / "02" / "config.yaml").write_text("name: not begun\n")
        assert write_report([sweep]) == sweep / "report.html"
        assert "2 seeds of one experiment" in text_of((sweep / "report.html").read_text())

    def test_the_command(self, tmp_path, hgpo):
        runs = [make_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
        file = tmp_path / "both.html"
        assert hgpo("report", *runs, "--output", file) == (0, f"{file}\n", "")
        assert "2 seeds of one experiment" in text_of(file.read_text())
        said = "hgpo: a report on several runs needs a file: give --output FILE.html\n"
        assert hgpo("report", *runs) == (2, "", said)

    @pytest.mark.parametrize("command", ["report {run} --output {out}", "data export {run} {out}"])
    def test_a_place_that_cannot_be_written(self, run_dir, tmp_path, hgpo, command):
        (tmp_path / "file").touch()
        out = tmp_path / "file" / ("x.html" if "report" in command else "x.jsonl")
        words = [word.format(run=run_dir, out=out) for word in command.split()]
        assert hgpo(*words) == (2, "", f"hgpo: cannot write {out}: Not a directory\n")

    def test_what_cannot_be_reported(self, run_dir, tmp_path):
        with pytest.raises(ResultsError, match="no run directory given"):
            write_report([])
        with pytest.raises(ResultsError, match=r"give --output FILE\.html"):
            write_report([run_dir, run_dir])
        with pytest.raises(ResultsError, match=r"--output: \S+/out does not end with \.html"):
            write_report([run_dir], tmp_path / "out")
        (tmp_path / "config.yaml").write_text("name: x\n")
        with pytest.raises(ResultsError, match="nothing recorded yet"):
            write_report([tmp_path])
        (tmp_path / "config.yaml").unlink()
        (tmp_path / "sweep" / "01").mkdir(parents=True)
        (tmp_path / "sweep" / "01" / "config.yaml").touch()
        with pytest.raises(ResultsError, match="none of its 1 runs has recorded anything yet"):
            write_report([tmp_path / "sweep"])


def test_self_contained_with_every_picture(run_dir):
    html = write_report([run_dir]).read_text()
    names = {path.name for path in (run_dir / "plots").iterdir()}
    assert html.count('src="data:image/png;base64,') == len(names) == 6
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    targets = re.findall(r'href="#([^"]*)"', html)
    assert {"success", "notes"} <= set(targets)
    for target in targets:
        assert f'id="{target}"' in html
    assert not [path for path in run_dir.iterdir() if path.name.startswith(".")]
