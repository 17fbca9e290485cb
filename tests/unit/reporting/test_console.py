"""The console output of training."""

import io
import logging
import re

import pytest

from hgpo_rllib.reporting.console import (
    HEADER_EVERY,
    TrainingConsole,
    log_events,
    make_console,
)
from hgpo_rllib.reporting.tables import split_table
from hgpo_rllib.results import load_runs
from tests.unit.reporting.reporting_rows import evaluation_row, metrics_row

TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d"


def events(stream):
    """Return the lines without their timestamps."""
    lines = stream.getvalue().splitlines()
    assert all(re.match(f"{TIME} ", line) for line in lines)
    return [line.partition(" ")[2] for line in lines]


def test_paths_are_printed_as_they_are(capsys):
    make_console().print("runs/:smile:/[bold]")
    assert capsys.readouterr().out == "runs/:smile:/[bold]\n"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class CountingStream(io.StringIO):
    flushes = 0

    def flush(self):
        self.flushes += 1
        super().flush()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stream(monkeypatch):
    # A log must stay plain even where the environment asks for color.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    return CountingStream()


class TestConsole:
    def test_lines_are_plain_when_not_on_a_terminal(self, stream, run_dir):
        console = TrainingConsole(stream)
        with (
            console.stage("loading [bold]games[/bold]"),
            console.progress("rolling out") as tell,
        ):
            tell(3, 3)
        console.iteration(metrics_row(1))
        console.evaluation([evaluation_row(0, "all", 0.2, 0.03, 100)])
        console.seconds = {"data": 20.4, "cloning": 190.0}
        console.summary(split_table(load_runs(run_dir)).to_dict("index"))
        text = stream.getvalue()
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        assert "loading [bold]games[/bold] ...\n" in text
        assert "rolling out: 3/3\n" in text
        said = "evaluation after iteration 0, all held-out: 20.0 % ± 3.0 of 100 episodes"
        assert re.search(rf"^{TIME} {said}$", text, re.MULTILINE)
        assert re.search(
            r"all held-out .* 100 .* 20\.0 % ± 3\.0 .* 36\.0 % ± 4\.0 .* \+16\.0", text
        )
        assert text.endswith("seconds: data 20, cloning 190\n")

    def test_every_line_is_flushed(self, stream):
        console = TrainingConsole(stream)
        console.say("one")
        first = stream.flushes
        console.say("two")
        assert stream.flushes > first >= 1

    def test_stage_says_how_long_it_took(self, stream):
        clock = Clock()
        console = TrainingConsole(stream, clock)
        with console.stage("generating games"):
            clock.now = 4.25
        assert events(stream) == ["generating games ...", "generating games: 4.2 s"]

    def test_stage_says_that_it_failed(self, stream):
        console = TrainingConsole(stream, Clock())
        with pytest.raises(KeyError), console.stage("generating games"):
            raise KeyError
        assert stream.getvalue().endswith("generating games: failed after 0.0 s\n")

    def test_progress_is_said_rarely(self, stream):
        clock = Clock()
        with TrainingConsole(stream, clock).progress("steps") as advance:
            for done in range(1, 1001):
                clock.now = done / 10  # 100 s: ten parts of ten seconds
                advance(done, 1000)
        assert events(stream) == [f"steps: {done}/1000" for done in range(100, 1001, 100)]

    def test_progress_of_a_short_task_is_said_once(self, stream):
        clock = Clock()
        with TrainingConsole(stream, clock).progress("steps") as advance:
            for done in range(1, 1001):
                clock.now = done / 250
                advance(done, 1000)
        assert events(stream) == ["steps: 1000/1000"]

    def test_iterations_are_aligned_under_a_repeated_header(self, stream):
        console = TrainingConsole(stream)
        for iteration in range(1, HEADER_EVERY + 2):
            console.iteration(metrics_row(iteration))
        console.iteration({"iteration": 99})
        lines = stream.getvalue().splitlines()
        headers = [index for index, line in enumerate(lines) if "success" in line]
        assert headers == [0, HEADER_EVERY + 1]
        assert len({len(line) for line in lines}) == 1
        assert lines[1].split() == [
            "1", "10.0%", "1.00", "1,000", "9.0s", "1.0s", "5.0s", "1,234", "0.0100", "0.002",
        ]  # fmt: skip
        assert lines[-1].split() == ["99", *["-"] * 9]

    def test_a_terminal_gets_live_displays(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        stream = Terminal()
        console = TrainingConsole(stream)
        with console.stage("generating"), console.progress("games") as advance:
            advance(1, 2)
            console.say("in between")
            advance(2, 2)
        assert "\x1b[" in stream.getvalue()
        assert "in between\n" in stream.getvalue()
        assert re.search(r"generating: \d\.\d s\n", stream.getvalue())


class TestWarnings:
    """Warnings of this project are logged in the format of the console."""

    WARNING = "policy server: no replica is running"

    def test_on_standard_error(self, capsys):
        """Within the block, a warning is logged once to standard error with a timestamp."""
        with log_events():
            logging.getLogger("hgpo_rllib.policy_server.replicas").warning(self.WARNING)
        assert re.fullmatch(f"{TIME} {self.WARNING}\n", capsys.readouterr().err)
        logging.getLogger("env_wrappers.webshop").warning("later")
        assert not re.search(TIME, capsys.readouterr().err)

    def test_in_the_log_of_a_trial(self, stream):
        with log_events(stream):
            logging.getLogger("env_wrappers.webshop.cache").warning(self.WARNING)
            logging.getLogger("ray.serve").warning("none of ours")
        assert events(stream) == [self.WARNING]
