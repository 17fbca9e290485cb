"""The plots of a report: the values drawn from recorded runs."""

import math
from itertools import pairwise

import matplotlib as mpl
import pandas as pd
import pytest

from hgpo_rllib.advantages.diagnostics import SIZE_LABELS
from hgpo_rllib.metrics import METRICS
from hgpo_rllib.reporting.panels import Line, Panel, band, draw_panels
from hgpo_rllib.reporting.plots import pictures
from hgpo_rllib.reporting.style import BLUE, STYLE, VERMILION
from hgpo_rllib.reporting.tables import phase_seconds, phase_table, task_type_table
from hgpo_rllib.results import load_runs
from tests.unit.reporting.reporting_rows import (
    crash,
    curves,
    diagnostics_row,
    drawn,
    evaluation_row,
    lines,
    make_run,
    metrics_row,
    panels,
    write_jsonl,
)

PNG = b"\x89PNG\r\n\x1a\n"
NAMES = {
    "learning_curve.png",
    "training.png",
    "policy.png",
    "groups.png",
    "mismatch.png",
    "speed.png",
}


@pytest.fixture
def diagnosed(run_dir):
    """Return a run whose first iteration has no diagnostics."""
    rows = [metrics_row(i) | (diagnostics_row(i) if i > 1 else {}) for i in range(1, 5)]
    write_jsonl(run_dir / "metrics.jsonl", rows)
    return run_dir


@pytest.fixture
def several(tmp_path):
    """Return runs of two seeds of one estimator and one seed of another, with different values."""
    runs = [
        make_run(tmp_path / f"{name}{seed}", after=after, seed=seed, estimator=name)
        for name, seed, after in (("hgpo", 0, 0.5), ("hgpo", 1, 0.7), ("grpo", 0, 0.4))
    ]
    for factor, run in enumerate(runs, start=1):
        rows = [metrics_row(i) | diagnostics_row(i) | {"kl": factor * 0.1} for i in range(1, 5)]
        write_jsonl(run / "metrics.jsonl", rows)
    return runs


def test_every_plot_is_a_png(diagnosed, several):
    made = pictures(load_runs([diagnosed]).experiments())
    assert set(made) == set(drawn(*several)) == NAMES | {"group_sizes.png"}
    assert all(png.startswith(PNG) and len(png) > 8_000 for png in made.values())


def test_pictures_without_content_are_left_out(run_dir):
    assert set(drawn(run_dir)) == NAMES, "nothing of the sizes of groups was recorded"
    assert set(drawn(crash(run_dir))) == NAMES
    write_jsonl(run_dir / "metrics.jsonl", [{"iteration": 1}])
    assert drawn(run_dir) == {}


def test_panels_without_content_are_left_out(run_dir):
    assert list(panels([run_dir], "policy.png")) == ["Steps of an episode"]
    assert list(panels([run_dir], "mismatch.png")) == ["Gap of log-probabilities (nats)"]
    crash(run_dir)
    assert list(panels([run_dir], "learning_curve.png")) == ["Success on training games"]


def test_titles_fit_over_their_panels(run_dir, several):
    """Titles are no wider than their panels if every metric with a panel is recorded."""
    rows = [
        metrics_row(i) | diagnostics_row(i) | dict.fromkeys(METRICS, 0.5) | {"iteration": i}
        for i in range(1, 5)
    ]
    for run in (run_dir, *several):
        write_jsonl(run / "metrics.jsonl", rows)
    # Pictures of metrics have the same panels whatever the number of runs.
    for figure in (*drawn(run_dir).values(), drawn(*several)["groups.png"]):
        figure.draw_without_rendering()
        for axes in figure.axes:
            assert axes._left_title.get_window_extent().x1 <= axes.bbox.x1 + 5, axes.get_title()


def test_the_papers_six_metrics(run_dir):
    assert list(panels([run_dir], "training.png")) == [
        "Mean advantage",
        "Loss",
        "KL to the reference policy (nats)",
        "Clip fraction (tokens)",
        "Mean return of an episode",
        "Success in training",
    ]
    ((x, y),) = curves(panels([run_dir], "training.png")["Mean advantage"]).values()
    assert (x, y) == ([1, 2, 3, 4], pytest.approx([0.02, 0.04, 0.06, 0.08]))


def test_a_band_is_over_the_iterations_that_all_runs_have(tmp_path):
    for run, losses in {"a": (0.2, 0.5, 0.1, 0.7), "b": (0.4, math.nan, 0.1)}.items():
        rows = [{"iteration": i, "kl": kl} for i, kl in enumerate(losses, start=1)]
        write_jsonl(make_run(tmp_path / run) / "metrics.jsonl", rows)
    values = band(load_runs(tmp_path), "kl")
    assert values.index.tolist() == [1, 3]
    assert values["mean"].tolist() == pytest.approx([0.3, 0.1])
    # sqrt(((0.1² + 0.1²) / 1) / 2)
    assert values["error"].tolist() == pytest.approx([0.1, 0.0])
    alone = band(load_runs(tmp_path / "a"), "kl")
    assert (alone["mean"].tolist(), set(alone["error"])) == ([0.2, 0.5, 0.1, 0.7], {0.0})
    assert len(band(load_runs(tmp_path), "no_such_metric")) == 0


def test_the_running_mean_looks_back_only(run_dir):
    rows = [metrics_row(i) | {"success_rate": 1.0 * (i > 10)} for i in range(1, 13)]
    write_jsonl(run_dir / "metrics.jsonl", rows)
    shown = lines(panels([run_dir], "learning_curve.png")["Success on training games"])
    assert shown["mean of the last 10"][1] == pytest.approx([0.0] * 10 + [0.1, 0.2])


def test_a_critic_has_a_picture_of_its_own(run_dir):
    rows = [metrics_row(i) | {"value_loss": 0.5 * i} for i in (1, 2)]
    write_jsonl(run_dir / "metrics.jsonl", rows)
    ((_, y),) = curves(panels([run_dir], "critic.png")["Value loss"]).values()
    assert y == [0.5, 1.0]


def test_environments_of_a_mixture_have_a_line_each(run_dir):
    rows = [
        metrics_row(i) | {"success_rate/crafting": 0.1 * i, "success_rate/household": 0.2 * i}
        for i in (1, 2)
    ]
    write_jsonl(run_dir / "metrics.jsonl", rows)
    axes = panels([run_dir], "environments.png")["Success in training"]
    assert [line.get_label() for line in axes.lines] == ["crafting", "household"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.1, 0.2], [0.2, 0.4]]


def test_curves_of_several_settings_have_a_color_and_a_band_each(several):
    axes = panels(several, "training.png")["KL to the reference policy (nats)"]
    assert curves(axes) == {
        BLUE: ([1, 2, 3, 4], pytest.approx([0.15] * 4)),
        VERMILION: ([1, 2, 3, 4], pytest.approx([0.3] * 4)),
    }
    (band,) = axes.collections  # of the two seeds: standard error 0.05
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (pytest.approx(0.1), pytest.approx(0.2))
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["hgpo", "grpo"]
    assert [line.get_color() for line in legend.get_lines()] == [BLUE, VERMILION]


class TestLearningCurve:
    def test_splits_of_one_run(self, run_dir):
        axes = panels([run_dir], "learning_curve.png")["Success on held-out games"]
        assert list(lines(axes)) == ["valid_seen", "valid_unseen", "all held-out"]
        assert lines(axes)["all held-out"] == ([0, 2, 4], pytest.approx([0.20, 0.28, 0.36]))
        assert len(axes.collections) == 3, "bands"

    def test_seeds_are_thin_lines_around_their_mean(self, tmp_path):
        rates = [(0.1, 0.5), (0.2, 0.3), (0.3, 0.4)]
        runs = [make_run(tmp_path / str(i), *pair, seed=i) for i, pair in enumerate(rates)]
        shown = lines(panels(runs, "learning_curve.png")["Success on held-out games, all splits"])
        assert list(shown) == ["seed 0", "seed 1", "seed 2", "mean of 3 seeds"]
        assert shown["seed 1"] == ([0, 2, 4], pytest.approx([0.2, 0.25, 0.3]))
        assert shown["mean of 3 seeds"] == ([0, 2, 4], pytest.approx([0.2, 0.3, 0.4]))

    def test_the_mean_ends_where_the_first_run_ends(self, tmp_path):
        runs = [make_run(tmp_path / str(i), seed=i) for i in range(2)]
        crash(runs[1])
        axes = panels(runs, "learning_curve.png")["Success on training games"]
        assert lines(axes)["each iteration"][0] == [1]


class TestGroups:
    TITLES = ("Step utilization", "Mean size of those groups", "Distance from the Oracle")

    def test_depths_and_the_oracle_have_a_line_each(self, diagnosed):
        shares, sizes = (panels([diagnosed], "groups.png")[title] for title in self.TITLES[:2])
        oracle = "whole history (Oracle)"
        assert list(lines(shares)) == ["k = 0", "k = 1", "k = 10", oracle, "advantage 0"]
        assert lines(shares)[oracle] == ([2, 3, 4], [0.25, 0.25, 0.25])
        assert lines(shares)["advantage 0"] == ([1, 2, 3, 4], [0.25] * 4)
        assert lines(sizes) == {oracle: ([2, 3, 4], [5, 6, 7])}

    def test_gaps_leave_out_what_is_not_a_number(self, diagnosed):
        assert lines(panels([diagnosed], "groups.png")[self.TITLES[2]]) == {
            "trajectory-level": ([2, 3, 4], [0.75] * 3),
            "step-level": ([2, 3, 4], [0.5] * 3),
            "HGPO": ([2, 4], [0.25] * 2),
        }

    def test_no_legend_covers_a_line(self, diagnosed):
        for name in ("groups.png", "mismatch.png"):
            figure = drawn(diagnosed)[name]
            figure.draw_without_rendering()
            for axes in figure.axes:
                legend = axes.get_legend()
                assert (legend is not None) == bool(lines(axes)), "lines with names have a legend"
                below = axes.xaxis.get_label().get_window_extent()
                assert legend is None or legend.get_window_extent().y1 <= below.y0

    def test_several_settings_without_depths(self, several):
        shown = panels(several, "groups.png")
        zero = ([1, 2, 3, 4], [0.25] * 4)
        # The share of the Oracle is 0.25, too.
        assert curves(shown["Step utilization"]) == {BLUE: zero, VERMILION: zero}
        assert len(shown["Step utilization"].lines) == 4


class TestGroupSizes:
    def test_a_panel_a_depth_of_mean_shares(self, diagnosed):
        shown = panels([diagnosed], "group_sizes.png")
        assert list(shown) == ["k = 0", "k = 1"]
        heights = [[bar.get_height() for bar in axes.patches] for axes in shown.values()]
        # Depth 1: 0.125 times the iterations 2, 3 and 4 is 0.375 on average.
        assert heights[0] == pytest.approx([0, 0, 0] + [0.25] * 4)
        assert heights[1] == pytest.approx([0.375, 0.125, 0.25, 0.125, 0.0, 0.0, 0.0])
        labels = [text.get_text() for text in shown["k = 1"].get_xticklabels()]
        assert labels == list(SIZE_LABELS)

    def test_bars_of_several_settings_are_side_by_side(self, several):
        bars = panels(several, "group_sizes.png")["k = 0"].patches
        assert len(bars) == 2 * len(SIZE_LABELS)
        edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars)
        assert all(left[1] <= right[0] + 1e-9 for left, right in pairwise(edges))


def test_a_band_down_to_0_is_not_drawn_on_a_log_axis():
    """A band whose lower edge is almost 0 does not stretch a log axis."""
    values = pd.DataFrame({"mean": [1e-3, 2e-3], "error": 1e-3 * (1 - 1e-9)}, index=[1, 2])
    with mpl.rc_context(STYLE):
        (axes,) = draw_panels([Panel("gap", lines=[Line(values)], log=True)], [], 3.0).axes
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 1e-5


class TestTime:
    def test_phases_of_an_iteration(self, run_dir):
        rows = [
            metrics_row(1) | {"iteration_s": 18.0, "rollout_wait_s": 4.0},
            metrics_row(2) | {"sync_s": 0.5},
        ]
        write_jsonl(run_dir / "metrics.jsonl", rows)
        evaluations = [
            evaluation_row(i, "all", 0.5, 0.1, 9) | {"evaluation_s": 7.0} for i in (0, 2)
        ]
        write_jsonl(run_dir / "evaluation.jsonl", evaluations)
        runs = load_runs(run_dir)
        known = {i: row.dropna().to_dict() for (_, i), row in phase_seconds(runs).iterrows()}
        assert known == {
            1: {"rollout": 4.0, "advantages": 1.0, "update": 5.0, "everything else": 8.0},
            2: {
                "rollout": 9.0,
                "advantages": 1.0,
                "update": 5.0,
                "weight sync": 0.5,
                "evaluation": 7.0,
            },
        }
        table = phase_table({"": runs})
        assert list(table.loc["evaluation"]) == ["7.0 s", "3.5 s", "17.3 %"]  # of 20.25 s
        assert table.loc["rollout", "per iteration"] == "6.5 s"

    def test_settings_have_a_column_of_means_each(self, several):
        table = phase_table(load_runs(several).experiments())
        assert table.to_dict("index") == {
            "rollout": {"hgpo": "9.0 s", "grpo": "9.0 s"},
            "advantages": {"hgpo": "1.0 s", "grpo": "1.0 s"},
            "update": {"hgpo": "5.0 s", "grpo": "5.0 s"},
        }

    def test_by_iteration(self, diagnosed):
        shown = panels([diagnosed], "speed.png")
        seconds = lines(shown["Seconds of an iteration"])
        waiting = lines(shown["Waiting and advantages (s)"])
        assert waiting["advantages"] == ([1, 2, 3, 4], [1.0] * 4)
        assert seconds["rollout"] == ([1, 2, 3, 4], [9.0] * 4)
        assert all(axes.get_ylim()[0] == 0 for axes in shown.values())


def test_task_types_of_several_settings_are_side_by_side(several):
    table = task_type_table(load_runs(several).experiments())
    # 0.5 and 0.7 of two seeds; 0.4 of one, sqrt(0.4 · 0.6 / 25)
    rates = {"hgpo": "60.0 % ± 10.0", "grpo": "40.0 % ± 9.8"}
    assert table.to_dict("index") == {"pick and place": rates}
