"""Trackers with real stores on disk: MLflow, and W&B in offline mode if it is installed."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from hgpo_rllib.config import RunConfig, parse_config
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run import trackers
from hgpo_rllib.run.grid import SWEEP_FILE
from hgpo_rllib.run.metrics import scalars
from hgpo_rllib.run.trackers import Trackers, check_trackers
from tests.unit.cli.command import POCKET, Run

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # some tests import it themselves

ROW = {"iteration": 1, "success_rate": 0.25, "oracle_gap_hgpo": None, "level_size_shares": [[1.0]]}
EVALUATION = {
    "iteration": 1,
    "split": "valid_seen",
    "success_rate": 0.5,
    "by_task_type": {"pick": {"success_rate": 0.5}},
}


def run_config(*names: str) -> RunConfig:
    return parse_config({"tracking": {"trackers": list(names), "project": "a-project"}})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory."""
    path = tmp_path / "runs" / "mine-1"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield a client of the MLflow file store to which runs log."""
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    yield mlflow.MlflowClient()
    mlflow.end_run()


def runs_of(store: Any) -> list[Any]:
    experiment = store.get_experiment_by_name("a-project")
    return store.search_runs([experiment.experiment_id])


def history(store: Any, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in store.get_metric_history(run_id, name)]


def test_mlflow_gets_settings_and_numbers(run: Path, store: Any) -> None:
    """Every setting is logged as a parameter, and all values that are numbers as metrics."""
    said: list[str] = []
    with Trackers(run_config("mlflow"), run, said.append) as open_trackers:
        open_trackers.log(scalars([ROW]), 1)
        open_trackers.log(scalars([EVALUATION]), 1)
        (tracked,) = runs_of(store)
        assert tracked.info.status == "RUNNING"
    (tracked,) = runs_of(store)
    assert tracked.info.status == "FINISHED"
    assert tracked.info.run_name == "mine-1"
    assert tracked.data.params["algorithm/weight_alpha"] == "1.0"
    assert tracked.data.params["env/max_steps"] == "50"
    assert tracked.data.metrics == {
        "iteration": 1.0,
        "success_rate": 0.25,
        "evaluation/valid_seen/success_rate": 0.5,
    }
    assert history(store, tracked.info.run_id, "success_rate") == [(1, 0.25)]
    assert said == [f"tracked by mlflow as {tracked.info.run_id}"]


def test_mlflow_run_goes_on_after_a_resume(run: Path, store: Any) -> None:
    """A resumed run with other settings continues the same MLflow run with the first parameters."""
    with Trackers(run_config("mlflow"), run, print) as open_trackers:
        open_trackers.log(scalars([ROW]), 1)
    longer = run_config("mlflow").model_copy(update={"iterations": 999})
    with Trackers(longer, run, print) as open_trackers:
        open_trackers.log(scalars([ROW | {"iteration": 2, "success_rate": 0.75}]), 2)
    (tracked,) = runs_of(store)
    assert tracked.data.params["iterations"] == "160"
    assert history(store, tracked.info.run_id, "success_rate") == [(1, 0.25), (2, 0.75)]


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt, "KILLED"), (GeneratorExit, "KILLED"), (ValueError, "FAILED")],
)
def test_status_of_a_run_that_did_not_end(
    run: Path, store: Any, error: type[BaseException], status: str
) -> None:
    """Interrupted and stopped runs have the status KILLED, failed runs FAILED."""
    with pytest.raises(error), Trackers(run_config("mlflow"), run, print):
        raise error
    (tracked,) = runs_of(store)
    assert tracked.info.status == status


def test_trials_of_a_sweep_are_a_group(run: Path, store: Any) -> None:
    """Trials are tagged with the name of the sweep's directory; other runs have no group."""
    with Trackers(run_config("mlflow"), run, print):
        pass
    assert "group" not in runs_of(store)[0].data.tags
    trial = run.with_name("trial")
    trial.mkdir()
    (run.parent / SWEEP_FILE).write_text("{}")
    with Trackers(run_config("mlflow"), trial, print):
        pass
    assert runs_of(store)[0].data.tags["group"] == "runs"


def test_a_tracker_that_breaks_ends_no_run(run: Path, store: Any) -> None:
    """A failing tracker is reported once and then not used, and the run continues."""
    said: list[str] = []
    with Trackers(run_config("mlflow"), run, said.append) as open_trackers:
        tracker = open_trackers._open["mlflow"]
        store.set_terminated(tracker.run_id)
        store.delete_run(tracker.run_id)
        open_trackers.log(scalars([ROW]), 1)
        open_trackers.log(scalars([ROW]), 1)
    store.restore_run(tracker.run_id)  # so that MLflow can end it
    assert len(said) == 2
    assert said[1].startswith("mlflow failed and is not used any more: ")


def test_a_tracker_that_does_not_start(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line without the password of the tracking URI."""
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(ConfigError, match="mlflow does not start") as raised,
        Trackers(run_config("mlflow"), run, print),
    ):
        pass
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert not (run / trackers.IDS_FILE).exists()


def test_no_tracker_writes_nothing(run: Path) -> None:
    """Without trackers, which is the default, no file is written."""
    with Trackers(RunConfig(), run, print) as open_trackers:
        open_trackers.log(scalars([ROW]), 1)
    assert list(run.iterdir()) == []


def test_addresses_lose_their_credentials() -> None:
    """Credentials are removed at any position in a message."""
    error = ValueError("no answer\nfrom https://me:secret@host/a and sqlite:////a@b")
    assert trackers.without_credentials(error) == "no answer from https://host/a and sqlite:////a@b"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package(name: str, monkeypatch: pytest.MonkeyPatch, hgpo: Run) -> None:
    """A missing package ends the command with code 2 and one line with the remedy."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    status, _, stderr = hgpo("train", POCKET, f"tracking.trackers=[{name}]")
    assert status == 2
    line = stderr.splitlines()[-1]  # after warnings of first imports
    assert line.startswith(f"hgpo: tracking.trackers: {name} is not installed; run `pip install ")


def test_present_packages_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed trackers and an empty list are accepted."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    check_trackers(trackers.PACKAGES)
    check_trackers([])


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let W&B write files without network access."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_wandb_offline(run: Path, offline: None) -> None:
    """Settings and metrics are written to the run directory; a resumed run keeps its id."""
    import wandb

    ids = []
    for iteration in (1, 2):
        with Trackers(run_config("wandb"), run, print) as open_trackers:
            tracker = open_trackers._open["wandb"]
            open_trackers.log(scalars([ROW | {"iteration": iteration}]), iteration)
            assert wandb.run.config["algorithm"]["weight_alpha"] == 1.0
            assert wandb.run.project == "a-project"
            assert wandb.run.name == "mine-1"
            assert dict(wandb.run.summary)["success_rate"] == 0.25
            assert "level_size_shares" not in dict(wandb.run.summary)
        ids.append(tracker.run_id)
    assert ids[0] == ids[1]
    files = list((run / "wandb").glob(f"offline-run-*-{ids[0]}/run-{ids[0]}.wandb"))
    assert files
    assert b"success_rate" in b"".join(file.read_bytes() for file in files)


def test_wandb_without_a_key(run: Path, offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names WANDB_API_KEY."""
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with (
        pytest.raises(ConfigError, match=r"wandb does not start: .*WANDB_API_KEY"),
        Trackers(run_config("wandb"), run, print),
    ):
        pass
