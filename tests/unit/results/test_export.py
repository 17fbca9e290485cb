"""`hgpo data export`: a run's recorded steps, as demonstrations for `hgpo sft`."""

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from hgpo_rllib.cli.main import app
from hgpo_rllib.results import ResultsError, load_run
from hgpo_rllib.results.export import Format, export_steps
from hgpo_rllib.run.fine_tuning import read_demonstrations
from tests.unit.reporting.reporting_rows import EPISODES, make_run, write_jsonl


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a run with the episodes of two iterations."""
    run = make_run(tmp_path / "run")
    others = [row | {"iteration": 3} for row in EPISODES[:3]]
    write_jsonl(run / "episodes" / "iteration_0003.jsonl.gz", others)
    return run


def read(file: Path) -> pd.DataFrame:
    """Return an exported table."""
    if file.suffix == ".parquet":
        return pd.read_parquet(file)
    return pd.read_json(file, lines=True)


@pytest.mark.parametrize("name", ["steps.jsonl", "steps.jsonl.gz", "steps.parquet"])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("form", ["sft", "hf"])
def test_the_steps_of_won_episodes(
    run_dir: Path, tmp_path: Path, name: str, form: Format, lost: bool
) -> None:
    """Each exported step has its game, prompt, response and advantage."""
    run = load_run(run_dir)
    episodes = run.episodes if lost else run.episodes[run.episodes["success"]]
    count = export_steps(run_dir, tmp_path / name, lost, form)
    table = read(tmp_path / name)
    assert count == len(table) == episodes["episode_length"].sum()
    if not lost:
        assert table["success"].all()
    expected = run.steps.merge(episodes, on=["iteration", "group", "member"])
    names = {"sft": ["rendered_prompt", "response"], "hf": ["prompt", "completion"]}[form]
    assert table[names].to_numpy().tolist() == expected[["prompt", "completion"]].values.tolist()
    assert table["advantage"].to_numpy() == pytest.approx(expected["advantage"].to_numpy())
    assert table["game"].tolist() == expected["game"].tolist()


@pytest.mark.parametrize("name", ["steps.jsonl.gz", "steps.parquet"])
def test_they_are_demonstrations(run_dir: Path, tmp_path: Path, name: str) -> None:
    """`hgpo sft` reads exported steps as demonstrations with rendered prompts."""
    file = tmp_path / name
    result = CliRunner().invoke(app, ["data", "export", str(run_dir), str(file)])
    assert result.exit_code == 0, result.output
    steps = read_demonstrations(file)
    assert f"{file}: {len(steps)} steps" in result.output
    same = tmp_path / f"same_{name}"
    CliRunner().invoke(app, ["data", "export", str(run_dir), str(same), "--format", "sft"])
    assert same.read_bytes() == file.read_bytes()
    assert all(step.rendered for step in steps)
    assert {step.game for step in steps} <= set(load_run(run_dir).episodes["game"])


def test_the_columns_of_trl(run_dir: Path) -> None:
    """`--format hf` writes the columns that trl reads, by default in the run directory."""
    arguments = ["data", "export", str(run_dir), "--format", "hf"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert {"prompt", "completion", "advantage"} <= set(read(run_dir / "steps_hf.parquet"))
    result = CliRunner().invoke(app, [*arguments[:-1], "csv"])
    assert result.exit_code == 2
    assert "'csv' is not one of 'sft', 'hf'" in result.output


def test_what_cannot_be_exported(run_dir: Path, tmp_path: Path) -> None:
    """Exports that are not possible raise an error and write no file."""
    with pytest.raises(ResultsError, match="the name must end in"):
        export_steps(run_dir, tmp_path / "steps.csv")
    with pytest.raises(ResultsError, match="no such directory"):
        export_steps(tmp_path / "none", tmp_path / "steps.jsonl")
    for file in (run_dir / "episodes").iterdir():
        file.unlink()
    with pytest.raises(ResultsError, match="no won training episodes"):
        export_steps(run_dir, tmp_path / "steps.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
