"""Output of `hgpo bench`. Speed is not tested."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hgpo_rllib.bench import alfworld, webshop
from hgpo_rllib.bench.advantages import bench_advantages, synthetic_batch
from hgpo_rllib.bench.measure import peak_mib
from hgpo_rllib.cli.common import show, with_median
from hgpo_rllib.cli.main import app
from hgpo_rllib.errors import ConfigError
from tests.unit.results.test_results import record as record_run

SMALL = ["bench", "advantages", "--size", "400"]


def test_both_sides_agree() -> None:
    """Both implementations give equal results, and `ratio` is that of their times."""
    for result in bench_advantages([400, 800]):
        assert result["difference"] < 1e-9
        assert result["ratio"] == result["dictionary_ms"] / result["columns_ms"]


def test_synthetic_batches_are_of_their_size() -> None:
    """A batch has groups of 8 episodes with 50 steps and different histories."""
    batch = synthetic_batch(800)
    assert {len(column) for column in batch.values()} == {800}
    assert len(set(batch["task"])) == 2
    assert len(set(batch["trajectory"])) == 16
    assert len(set(batch["anchor"])) > 5


def test_json_is_one_object() -> None:
    """With `--json`, standard output holds one JSON object and nothing else."""
    done = CliRunner().invoke(app, [*SMALL, "--json"])
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert [row["steps"] for row in result["advantages"]] == [400]


def test_tables() -> None:
    """Each size has a row, and the study has a table and its claims."""
    done = CliRunner().invoke(app, SMALL)
    assert done.exit_code == 0
    rows = [line.split("│") for line in done.stdout.splitlines() if "│" in line]
    assert "400" in [row[1].strip() for row in rows]
    done = CliRunner().invoke(app, ["bench", "bias-variance", "--group-size", "3"])
    assert done.exit_code == 0
    assert "hgpo_uncertainty" in done.stdout
    assert "bias of HGPO <= b_0" in done.stdout
    done = CliRunner().invoke(app, ["bench", "bias-variance", "--group-size", "3", "--json"])
    (row, *_) = json.loads(done.stdout)["all steps, as used in training"]
    assert set(row) == {"estimate", "N=3 bias", "N=3 std", "N=3 rmse"}


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options select what is measured."""
    given: list[Any] = []

    def bench(*arguments: Any, **fixed: Any) -> dict[str, Any]:
        given.append(arguments)
        return {"steps": []}

    monkeypatch.setattr(alfworld, "bench_alfworld", bench)
    monkeypatch.setattr(webshop, "bench_webshop", bench)
    for words in ("alfworld --official 3", "webshop --products 50", "webshop --data store"):
        assert CliRunner().invoke(app, ["bench", *words.split()]).exit_code == 0
    assert given == [(None, "valid_seen", 3, 4), (None, 50), (Path("store"), 1000)]
    assert CliRunner().invoke(app, ["bench", "webshop", "--products", "0"]).exit_code == 2


def test_how_numbers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers have three significant digits, or all integer digits; headings are the keys."""
    row = {"kind": "a", "steps": 12_345, "ms": 1234.56, "ratio": 0.012345, "each_mb": 1.5}
    show({"some_rows": [row]}, as_json=False)
    printed = capsys.readouterr().out
    assert "some rows" in printed
    assert "each mb" in printed
    cells = [line for line in printed.splitlines() if "12,345" in line]
    assert [cell.strip() for cell in cells[0].split("│")[1:-1]] == [
        "a",
        "12,345",
        "1,235",
        "0.0123",
        "1.5",
    ]


def test_the_median_is_a_turn_that_took_place() -> None:
    """The median of an even number of turns is the lower of the two in the middle."""
    rows = with_median([{"ratio": ratio} for ratio in (0.5, 1.0, 0.25, 0.4)], "ratio")
    assert [row["turn"] for row in rows] == ["1", "2", "3", "4", "median"]
    assert rows[-1]["ratio"] == 0.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advantages", "--size", "500"], "--size: a batch of 500 steps: take multiples of 400"),
        (["bias-variance", "--group-size", "9"], "--group-size: .* must be 2 to 8, got 9"),
    ],
)
def test_bad_sizes(arguments: list[str], message: str) -> None:
    """The error names the option and the remedy; `main` turns it into exit code 2."""
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise done.exception


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("publish --gb 1000000", "--gb: no size fits the free memory"),
        ("publish --gb 1 --gb inf", "--gb: give finite numbers"),
        ("scale RUN", "RUN: no recorded episodes to replay"),
        ("scale RUN --figure missing/a.png", "--figure: missing is not a directory: create it"),
        ("credit a.json --figure missing/a.png", "--figure: missing is not a directory: create it"),
        ("credit a.json --figure .", "--figure: . is a directory: give the path of a file"),
        (
            "credit a.json --output b",
            "a.json is only shown again: leave out all but --figure and --json",
        ),
        ("learner alfworld_pocket env.options.max=1", "unknown option env.options.max;"),
    ],
)
def test_nothing_to_measure_or_no_place_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    """The error is raised before Ray starts."""
    monkeypatch.setattr("ray.init", lambda *_, **__: pytest.fail("Ray was started"))
    monkeypatch.chdir(tmp_path)
    record_run(tmp_path, [0.2]).rename("RUN")
    done = CliRunner().invoke(app, ["bench", *arguments.split()])
    assert isinstance(done.exception, ConfigError), done.output
    assert message in str(done.exception)


def test_peak_memory_counts_what_is_freed_again() -> None:
    """The peak has two arrays of 8 MiB that live at once, but no earlier allocations."""
    already = np.ones(2**20)

    def work() -> float:
        return float((np.ones(2**20) + np.ones(2**20)[:1]).sum() + already[0])

    assert 16 <= peak_mib(work) < 25


def test_peak_memory_of_the_estimator() -> None:
    """The peak grows with the batch."""
    small, large = bench_advantages([4000, 8000])
    assert 4000 * 8 / 2**20 < small["peak_mib"] < large["peak_mib"] < 5
