"""The report of a run: what it reads and the numbers it states."""

import json
import math
import re
from pathlib import Path

import pytest

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.reporting.episodes import pick_episodes
from hgpo_rllib.reporting.plots import (
    GAPS,
    plot_run,
    running_mean,
    seed_curve,
    size_shares,
)
from hgpo_rllib.reporting.report import write_report
from hgpo_rllib.reporting.run_data import RunError, load_run
from hgpo_rllib.reporting.stats import (
    Estimate,
    binomial,
    duration,
    number,
    over_seeds,
    percent,
    points,
)
from tests.unit.reporting_rows import (
    EPISODES,
    diagnostics_row,
    episode,
    figures,
    lines,
    make_run,
    metrics_row,
    panels,
    texts,
    write_jsonl,
)

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run_dir(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def diagnosed(run_dir):
    """A run whose first iteration was recorded before there were diagnostics."""
    rows = [metrics_row(i) | (diagnostics_row(i) if i > 1 else {}) for i in range(1, 5)]
    write_jsonl(run_dir / "metrics.jsonl", rows)
    return run_dir


def text_of(html):
    """The page without markup and pictures, white space collapsed."""
    body = html.split("<body>")[1]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


class TestStats:
    def test_difference_adds_the_errors_in_quadrature(self):
        change = Estimate(0.36, 0.04) - Estimate(0.20, 0.03)
        assert change.value == pytest.approx(0.16)
        assert change.error == pytest.approx(0.05)

    def test_difference_with_something_missing(self):
        assert Estimate(0.5) - Estimate(None) == Estimate(None)
        assert (Estimate(0.5, 0.1) - Estimate(0.25)).error is None

    def test_mean_and_standard_error_over_seeds(self):
        # Mean 0.3; squared deviations 0.01 + 0 + 0.01 over 2 is 0.01; sqrt(0.01 / 3).
        estimate = over_seeds([0.2, 0.3, None, 0.4])
        assert estimate.value == pytest.approx(0.3)
        assert estimate.error == pytest.approx(0.1 / math.sqrt(3))

    def test_one_seed_has_no_standard_error(self):
        assert over_seeds([0.2]) == Estimate(0.2, None)

    def test_binomial(self):
        assert binomial(0.2, 25).error == pytest.approx(0.08)
        assert binomial(0.2, None) == Estimate(0.2, None)

    @pytest.mark.parametrize("value", [None, math.nan, math.inf, "1", [[0.5, 0.5]]])
    def test_what_is_not_a_finite_number_is_missing(self, value):
        assert number({"x": value}, "x") is None
        assert number(None, "x") is None

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(4.21, "4.2 s"), (59.97, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
    )
    def test_durations(self, seconds, text):
        assert duration(seconds) == text

    def test_writing_estimates(self):
        assert percent(Estimate(0.3433, 0.041)) == "34.3 % ± 4.1"
        assert points(Estimate(-0.05)) == "-5.0"
        assert percent(Estimate(None)) == points(Estimate(None)) == "n/a"


class TestLoadRun:
    def test_reads_everything(self, run_dir):
        run = load_run(run_dir)
        assert (run.name, run.seed) == ("small", 1)
        assert run.splits == ["valid_seen", "valid_unseen"]
        assert [row["iteration"] for row in run.metrics] == [1, 2, 3, 4]
        assert run.before()["success_rate"] == 0.20
        assert run.after()["iteration"] == 4
        assert len(run.episodes) == 4
        assert run.summary == {"seconds": {"games": 3.5}}

    def test_a_torn_last_line_is_left_out(self, run_dir):
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write('{"iteration": 5, "succ')
        assert load_run(run_dir).metrics[-1]["iteration"] == 4

    def test_a_damaged_line_elsewhere_is_an_error(self, run_dir):
        text = (run_dir / "metrics.jsonl").read_text()
        (run_dir / "metrics.jsonl").write_text('{"torn\n' + text)
        with pytest.raises(RunError, match=r"metrics\.jsonl: line 1 is not a JSON object"):
            load_run(run_dir)

    def test_a_compressed_file_cut_off_keeps_its_whole_lines(self, run_dir):
        file = run_dir / "episodes" / "train-4.jsonl.gz"
        whole = file.read_bytes()
        file.write_bytes(whole[:-20])
        assert 1 <= len(load_run(run_dir).episodes) < 4

    def test_a_repeated_iteration_counts_as_written_last(self, run_dir):
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"iteration": 3, "kl": 0.5}) + "\n")
        rows = load_run(run_dir).metrics
        assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
        assert rows[2]["kl"] == 0.5

    def test_episodes_are_the_newest_training_episodes(self, run_dir):
        write_jsonl(run_dir / "episodes" / "train-3.jsonl", [episode(9, True, [1.0], 3)])
        write_jsonl(run_dir / "episodes" / "eval-9.jsonl", [episode(8, True, [0.0], 9, "all")])
        assert {row["member"] for row in load_run(run_dir).episodes} == {0, 1, 2, 3}

    def test_an_unknown_episode_format_is_an_error(self, run_dir):
        write_jsonl(run_dir / "episodes" / "x.jsonl", [{"format": "hgpo-episode-2"}])
        with pytest.raises(RunError, match="'hgpo-episode-2' is not known"):
            load_run(run_dir)

    def test_what_is_not_a_run(self, tmp_path):
        with pytest.raises(RunError, match="no such directory"):
            load_run(tmp_path / "missing")
        with pytest.raises(RunError, match=r"not a run directory \(no config\.yaml in it\)"):
            load_run(tmp_path)
        (tmp_path / "config.yaml").write_text("name: x\n")
        with pytest.raises(RunError, match="nothing recorded yet"):
            load_run(tmp_path)

    def test_an_error_is_one_line(self, run_dir):
        (run_dir / "config.yaml").write_text("a: [1\nb: 2")
        with pytest.raises(RunError) as error:
            load_run(run_dir)
        assert "\n" not in str(error.value)


class TestPlots:
    @pytest.mark.parametrize("recorded", ["run_dir", "diagnosed"])
    def test_every_plot_is_a_png(self, recorded, request):
        pictures = plot_run(load_run(request.getfixturevalue(recorded)))
        assert set(pictures) == {"learning_curve.png", "policy.png", "hierarchy.png", "time.png"}
        assert all(png.startswith(PNG) and len(png) > 10_000 for png in pictures.values())

    def test_a_run_with_next_to_nothing_recorded(self, run_dir):
        (run_dir / "evaluation.jsonl").unlink()
        write_jsonl(run_dir / "metrics.jsonl", [{"iteration": 1}])
        assert all(png.startswith(PNG) for png in plot_run(load_run(run_dir)).values())

    def test_running_mean_looks_back_only(self):
        assert running_mean([1.0, 2.0, 6.0, 10.0], window=3) == pytest.approx([1, 1.5, 3, 6])

    def test_seed_curve_needs_every_seed(self, tmp_path):
        runs = [
            load_run(make_run(tmp_path / str(seed), before, after, seed))
            for seed, (before, after) in enumerate([(0.1, 0.5), (0.2, 0.3), (0.3, 0.4)])
        ]
        runs[0].evaluations[:] = [r for r in runs[0].evaluations if r["iteration"] != 2]
        iterations, means, errors = seed_curve(runs)
        assert iterations == [0, 4]
        assert means == pytest.approx([0.2, 0.4])
        assert errors == pytest.approx([0.1 / math.sqrt(3)] * 2)


class TestHierarchyPlot:
    TITLES = (
        "Steps in a group of two or more",
        "Mean group size",
        "Distance from the Oracle estimate",
        "Steps by size of their group",
    )

    def test_the_oracle_is_dotted_beside_the_depths(self, diagnosed):
        shares, sizes = (panels(diagnosed, "hierarchy.png")[title] for title in self.TITLES[:2])
        depths = {"k = 0", "k = 1", "k = 10"}
        assert set(lines(shares)) == depths | {"whole history (Oracle)", "zero advantage"}
        assert lines(shares)["whole history (Oracle)"] == ([2, 3, 4], [0.25, 0.25, 0.25])
        assert lines(sizes) == {"whole history (Oracle)": ([2, 3, 4], [5, 6, 7])}
        styles = {line.get_label(): line.get_linestyle() for line in shares.lines}
        assert styles.pop("whole history (Oracle)") == ":"
        assert styles.pop("zero advantage") == "--"
        assert set(styles.values()) == {"-"}

    def test_gaps_leave_out_what_is_not_a_number(self, diagnosed):
        assert lines(panels(diagnosed, "hierarchy.png")[self.TITLES[2]]) == {
            "trajectory-level": ([2, 3, 4], [0.75] * 3),
            "step-level": ([2, 3, 4], [0.5] * 3),
            "HGPO": ([2, 4], [0.25] * 2),
        }

    def test_gaps_of_which_none_is_a_number(self, run_dir):
        gaps = dict.fromkeys(diagnostics_row(1).keys() & GAPS.keys(), math.nan)
        assert len(gaps) == 3
        write_jsonl(run_dir / "metrics.jsonl", [metrics_row(1) | gaps])
        axes = panels(run_dir, "hierarchy.png")[self.TITLES[2]]
        assert not axes.lines
        assert texts(axes) == ["not recorded"]

    def test_bars_are_the_mean_shares_stacked(self, diagnosed):
        axes = panels(diagnosed, "hierarchy.png")[self.TITLES[3]]
        assert [bars.get_label() for bars in axes.containers] == list(SIZE_LABELS)
        heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
        # Depth 1: 0.125 times the iterations 2, 3 and 4 is 0.375 on average.
        assert [first for first, _ in heights] == pytest.approx([0, 0, 0] + [0.25] * 4)
        assert [last for _, last in heights] == pytest.approx(
            [0.375, 0.125, 0.25, 0.125, 0.0, 0.0, 0.0]
        )
        bottoms = [bars[1].get_y() for bars in axes.containers]
        assert bottoms == pytest.approx([0, 0.375, 0.5, 0.75, 0.875, 0.875, 0.875])
        assert [bar.get_center()[0] for bar in axes.containers[0]] == pytest.approx([0, 1])
        legend = axes.get_legend()
        assert legend.get_title().get_text() == "group size"
        # Top to bottom as in the bars.
        assert [text.get_text() for text in legend.get_texts()] == list(SIZE_LABELS)[::-1]

    def test_a_run_without_diagnostics(self, run_dir):
        drawn = panels(run_dir, "hierarchy.png")
        assert tuple(drawn) == self.TITLES
        shares, *others = drawn.values()
        assert set(lines(shares)) == {"k = 0", "k = 1", "k = 10", "zero advantage"}
        assert [texts(axes) for axes in others] == [["not recorded"]] * 3
        assert not any(axes.get_legend() for axes in others)

    def test_no_legend_covers_a_line(self, diagnosed):
        for axes in figures(diagnosed)["hierarchy.png"].axes:
            axes.figure.canvas.draw()
            legend = axes.get_legend().get_window_extent()
            assert legend.x0 >= axes.bbox.x1 or legend.y1 <= axes.bbox.y0

    def test_size_shares_are_means_over_what_is_known(self):
        half, whole = [0.5, 0.5, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0, 0]
        rows = [
            {"level_size_shares": [half]},
            {},
            {"level_size_shares": None},
            {"level_size_shares": math.nan},
            {"level_size_shares": [whole, half, [1.0]]},
            {"level_size_shares": [[math.nan] * 7, None, [None] * 7]},
        ]
        assert size_shares(rows) == {0: [0.25, 0.75, 0, 0, 0, 0, 0], 1: half}
        assert size_shares([{}]) == {}


class TestTimePlot:
    def test_what_the_estimator_takes(self, diagnosed):
        drawn = panels(diagnosed, "time.png")
        (seconds,) = lines(drawn["Advantages, milliseconds"]).values()
        (memory,) = lines(drawn["Advantages, peak MiB"]).values()
        assert seconds == ([1, 2, 3, 4], [1000.0] * 4)
        assert memory == ([2, 3, 4], [2.5] * 3)
        small = list(drawn.values())[1:]
        assert [axes.get_ylim()[0] for axes in small] == [0, 0, 0]
        assert all(axes.get_ylim()[1] > max(axes.lines[0].get_ydata()) for axes in small)

    def test_memory_that_was_not_recorded(self, run_dir):
        drawn = panels(run_dir, "time.png")
        assert texts(drawn["Advantages, peak MiB"]) == ["not recorded"]
        assert not texts(drawn["Advantages, milliseconds"])


class TestEpisodes:
    def test_picks_a_success_a_failure_and_the_widest(self):
        picked = pick_episodes(EPISODES)
        assert [(e["member"], e["success"]) for e in picked] == [(0, True), (2, False), (3, False)]

    def test_order_of_arrival_does_not_matter(self):
        assert pick_episodes(EPISODES[::-1]) == pick_episodes(EPISODES)

    def test_bars_share_one_scale_with_the_sign_apart(self):
        steps = [step for shown in pick_episodes(EPISODES) for step in shown["steps"]]
        assert [step["width"] for step in steps] == [12.5] * 5 + [50.0, 25.0]
        assert [step["negative"] for step in steps] == [False] * 2 + [True] * 4 + [False]

    def test_without_advantages_no_episode_is_called_the_widest(self):
        picked = pick_episodes([episode(0, True, [None, None]), episode(1, False, [0.0])])
        assert [e["title"] for e in picked] == ["A short success", "A short failure"]
        assert picked[0]["steps"][0]["advantage"] == "n/a"


class TestReport:
    def test_headline_states_before_after_and_difference(self, run_dir):
        path = write_report([run_dir])
        assert path == run_dir / "report.html"
        text = text_of(path.read_text())
        assert "before 20.0 % ± 3.0 after 36.0 % ± 4.0" in text
        assert "percentage points +16.0 ± 5.0" in text
        assert "100 episodes at temperature 0.40" in text
        assert "may be chance" not in text

    def test_tables(self, run_dir):
        text = text_of(write_report([run_dir]).read_text())
        assert "valid_unseen 40 20.0 % ± 3.0 36.0 % ± 4.0 +16.0 ± 5.0" in text
        # sqrt(0.2 * 0.8 / 25) = 0.08, sqrt(0.36 * 0.64 / 25) = 0.096, together 0.125.
        assert "pick and place 25 20.0 % ± 8.0 36.0 % ± 9.6 +16.0 ± 12.5" in text
        # 4 iterations of 9 s, 1 s and 5 s in 80 s of wall time leave 20 s.
        assert "rollout 36.0 s 9.0 s 45.0 %" in text
        assert "everything else 20.0 s 5.0 s 25.0 %" in text

    def test_a_small_difference_is_called_what_it_is(self, tmp_path):
        text = text_of(write_report([make_run(tmp_path / "run", 0.2, 0.29)]).read_text())
        assert "+9.0 ± 5.0" in text
        assert "may be chance" in text

    def test_what_models_write_is_escaped(self, run_dir):
        html = write_report([run_dir]).read_text()
        assert "&lt;think&gt;go&lt;/think&gt;" in html
        assert "# &lt;weight&gt;" in html
        assert "<think>" not in html
        assert "<script" not in html

    def test_self_contained_with_every_picture(self, run_dir):
        html = write_report([run_dir]).read_text()
        assert html.count('src="data:image/png;base64,') == 4
        assert not re.search(r'(src|href)="(?!data:)', html)
        names = {path.name for path in (run_dir / "plots").iterdir()}
        assert names == {"learning_curve.png", "policy.png", "hierarchy.png", "time.png"}
        assert not [path for path in run_dir.iterdir() if path.name.startswith(".")]

    def test_a_run_still_going_on(self, run_dir):
        for name in ("summary.json", "evaluation.jsonl", "episodes/train-4.jsonl.gz"):
            (run_dir / name).unlink()
        text = text_of(write_report([run_dir]).read_text())
        assert "before n/a after n/a" in text
        assert "still going on or was stopped early" in text

    def test_output_directory_of_one_run(self, run_dir, tmp_path):
        assert write_report([run_dir], tmp_path / "out") == tmp_path / "out" / "report.html"
        assert not (run_dir / "report.html").exists()

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

    def test_several_seeds(self, tmp_path):
        rates = [(0.1, 0.5), (0.2, 0.3), (0.3, 0.4)]
        runs = [make_run(tmp_path / f"s{i}", *pair, seed=i) for i, pair in enumerate(rates)]
        path = write_report(runs, tmp_path / "out")
        assert path == tmp_path / "out" / "report.html"
        assert (tmp_path / "out" / "seeds.png").read_bytes().startswith(PNG)
        assert all((run / "report.html").is_file() for run in runs)
        text = text_of(path.read_text())
        # Before 10, 20, 30 and after 50, 30, 40: standard deviation 10, over sqrt(3) is 5.8.
        # Differences 40, 10, 10: mean 20, standard deviation sqrt(600 / 2), over sqrt(3) is 10.
        assert "before 20.0 % ± 5.8 after 40.0 % ± 5.8" in text
        assert "percentage points +20.0 ± 10.0" in text
        assert "s1 1 4 100 20.0 % ± 3.0 30.0 % ± 4.0 +10.0 ± 5.0" in text
        assert "differ in more" not in text

    def test_seeds_of_different_configurations_are_pointed_out(self, tmp_path):
        runs = [make_run(tmp_path / f"s{seed}", seed=seed) for seed in range(2)]
        config = runs[1] / "config.yaml"
        config.write_text(config.read_text().replace("0.7", "0.9"))
        text = text_of(write_report(runs, tmp_path / "out").read_text())
        assert "differ in more than the seed: algorithm.omega." in text

    def test_what_cannot_be_reported(self, run_dir):
        with pytest.raises(RunError, match="no run directory given"):
            write_report([])
        with pytest.raises(RunError, match="needs an output directory"):
            write_report([run_dir, run_dir])
