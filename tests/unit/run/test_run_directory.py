"""The run directory: its lock, and reading what a killed run left behind."""

import errno
import io
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.exceptions import OutOfMemoryError, RayActorError

from hgpo_rllib.config import RunConfig, load_config, save_config
from hgpo_rllib.errors import ConfigError, RunStoppedError
from hgpo_rllib.jsonl import ResultsError, append_jsonl, read_jsonl
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run import sweep, trial
from hgpo_rllib.run.changes import record_start
from hgpo_rllib.run.directory import RunDirectory, describe_full_disk
from hgpo_rllib.run.grid import SWEEP_FILE, Sweep
from hgpo_rllib.run.lock import locked
from hgpo_rllib.run.sweep import run_sweep
from hgpo_rllib.run.trial import ERROR, LOG, RunTrainable
from tests.paths import ROOT
from tests.unit.cli.command import run_hgpo

HOLD = """
import sys
from pathlib import Path
from hgpo_rllib.run.lock import locked
with locked(Path(sys.argv[1])):
    {inside}
    print("held", flush=True)
    sys.stdin.read()
"""
START_CHILD = "import subprocess; subprocess.Popen(['sleep', '60'])"


def test_runs_of_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the same second get different folders; a broken link raises a one-line error."""
    monkeypatch.setattr("time.strftime", lambda _: "now")
    config = RunConfig(output=str(tmp_path / "runs"))
    names = [RunDirectory.create(config).path.name for _ in range(3)]
    assert names == ["hgpo-now", "hgpo-now-2", "hgpo-now-3"]
    (tmp_path / "disk").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ConfigError, match=r"output: cannot make .*disk/hgpo-now: File exists"):
        RunDirectory.create(RunConfig(output=str(tmp_path / "disk")))


@contextmanager
def held_elsewhere(folder: Path, inside: str = "") -> Iterator[psutil.Process]:
    """Yield another process that holds the lock and has run `inside`."""
    command = [sys.executable, "-c", HOLD.format(inside=inside), str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        process = psutil.Process(holder.pid)
        children = process.children()
        try:
            yield process
        finally:
            for each in (process, *children):
                if each.is_running():
                    each.kill()


@pytest.fixture
def run(tmp_path: Path, generated_games: Path, model_path: str) -> Path:
    """Return the directory of a run that was killed in its second iteration during a write."""
    folder = tmp_path / "run"
    (folder / "state").mkdir(parents=True)
    config = load_config(None, [f"env.data={generated_games}", f"model.model_path={model_path}"])
    save_config(config, folder / "config.yaml")
    (folder / "metrics.jsonl").write_text('{"iteration": 1}\n{"iteration": 2, "a": {"b": {}')
    return folder


class TestLock:
    def test_another_process_is_named(self, tmp_path: Path) -> None:
        """The error names the process and its host; the lock is released when that process ends."""
        with held_elsewhere(tmp_path / "run") as holder:
            with pytest.raises(ConfigError) as refused, locked(tmp_path / "run"):
                pass
            named = f"process {holder.pid} on {socket.gethostname()}"
            assert str(refused.value) == (
                f"{tmp_path / 'run'} is in use: {named} writes to it; "
                "wait until that has ended, or stop it"
            )
            holder.kill()
            holder.wait()
            with locked(tmp_path / "run"):
                pass

    def test_children_of_a_killed_process_do_not_hold_it(self, tmp_path: Path) -> None:
        with held_elsewhere(tmp_path, START_CHILD) as holder:
            (alive,) = holder.children()
            holder.kill()
            holder.wait()
            assert alive.is_running()
            with locked(tmp_path):
                pass

    def test_a_folder_in_which_nothing_is_written_is_removed(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), locked(tmp_path / "sweep"):
            raise KeyError
        assert list(tmp_path.iterdir()) == []
        with locked(tmp_path / "sweep"):
            (tmp_path / "sweep" / "file").touch()
        assert (tmp_path / "sweep" / "file").exists()

    def test_a_file_system_without_locks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The user is warned, and the folder is written without a lock."""

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("fcntl.flock", refuse)
        with locked(tmp_path):
            (line,) = caplog.messages
        assert "this file system has no locks (No locks available)" in line

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"cannot write to .*file"), locked(tmp_path / "file"):
            pass


def test_train_resume_of_a_run_that_is_written(run: Path, tmp_path: Path) -> None:
    """Resuming a locked run exits with code 2 and one line before Ray starts or a file changes."""
    with held_elsewhere(run) as holder:
        before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
        (tmp_path / "cwd").mkdir()
        done = run_hgpo(tmp_path / "cwd", "train", "--resume", str(run))
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"hgpo: {run} is in use: process {holder.pid} on ")
        assert done.stdout == ""
        assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_sweep_that_is_written(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path), pytest.raises(ConfigError, match="is in use: process"):
        run_sweep(Sweep((), ()), tmp_path)


def test_a_sweep_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that continues the sweep, if there is anything to continue."""

    def fail(*_: Any) -> bool:
        raise OSError(errno.ENOSPC, "No space left", "results.csv")

    monkeypatch.setattr(sweep, "_conclude", fail)
    with pytest.raises(OSError, match="No space left"):
        run_sweep(Sweep((), ()), tmp_path)
    tmp_path.mkdir()  # `locked` has removed the empty folder
    (tmp_path / SWEEP_FILE).touch()
    command = f"hgpo sweep --resume {tmp_path}"
    said = re.escape(f"No space left on device (results.csv); continue with: {command}")
    with pytest.raises(RunStoppedError, match=said):
        run_sweep(Sweep((), ()), tmp_path)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.EDQUOT, "x"), "Disk quota exceeded"),
        (OSError(errno.ENOSPC, "x", "a/file"), "No space left on device (a/file)"),
        (RuntimeError("Error: No space left on device (os error 28)"), "No space left on device"),
        (OSError(errno.EACCES, "x"), None),
    ],
)
def test_full_disks(error: Exception, problem: str | None) -> None:
    """A full disk is found in the errors of libraries and in the causes of an error."""
    assert describe_full_disk(error) == problem
    for link in ("__cause__", "__context__"):
        later = ValueError("not saved")
        setattr(later, link, error)
        assert describe_full_disk(later) == problem


def test_a_trial_whose_run_is_written(run: Path) -> None:
    """A trial whose run directory is locked fails, and its log names the reason."""
    with held_elsewhere(run) as holder:
        with pytest.raises(ConfigError, match="is in use: process"):
            RunTrainable({"trial": {"path": str(run), "serve_prefix": "hgpo-test"}})
        assert f"is in use: process {holder.pid} on " in (run / LOG).read_text()


def test_a_trial_keeps_others_from_its_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial holds the lock of its run, since `hgpo train --resume` would write the same files."""
    tried: list[str] = []

    def stop(*_: Any) -> RunConfig:
        command = [sys.executable, "-c", HOLD.format(inside=""), str(run)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        tried.append(done.stderr)
        raise ConfigError("seen enough")

    monkeypatch.setattr(trial, "load_config", stop)
    with pytest.raises(ConfigError, match="seen enough"):
        RunTrainable({"trial": {"path": str(run), "serve_prefix": "hgpo-test"}})
    assert f"is in use: process {os.getpid()} on" in tried[0]


class TestLines:
    @pytest.mark.parametrize("end", ['{"iteration": 3, "a": {"b": 1}', '{"iter', ""])
    def test_a_last_line_that_was_cut_is_dropped(self, tmp_path: Path, end: str) -> None:
        """A truncated last line is dropped, even if it was cut right after a closing brace."""
        directory = RunDirectory(tmp_path)
        append_jsonl(directory.evaluations, [{"iteration": i} for i in range(3)])
        with directory.evaluations.open("a") as stream:
            stream.write(end)
        directory.truncate(1)
        assert directory.evaluations.read_text() == '{"iteration": 0}\n{"iteration": 1}\n'
        assert list(read_jsonl(directory.evaluations)) == [{"iteration": 0}, {"iteration": 1}]

    def test_episodes_of_later_iterations_are_dropped(self, tmp_path: Path) -> None:
        """Episodes of later iterations are deleted, and files of the user are kept."""
        directory = RunDirectory(tmp_path)
        for iteration in (1, 9, 10):
            directory.write_episodes(iteration, [{"iteration": iteration}])
        (tmp_path / "episodes" / "iteration_10 (copy).jsonl.gz").touch()  # a file of the user
        directory.truncate(9)
        kept = sorted(file.name for file in (tmp_path / "episodes").iterdir())
        written = ["iteration_0001.jsonl.gz", "iteration_0009.jsonl.gz"]
        assert kept == [*written, "iteration_10 (copy).jsonl.gz"]

    def test_a_run_that_is_trained_longer_is_not_finished(self, tmp_path: Path) -> None:
        directory = RunDirectory(tmp_path)
        directory.summary.write_text("{}")
        directory.truncate(9)
        assert not directory.is_finished()

    def test_a_broken_line_before_others_is_an_error(self, tmp_path: Path) -> None:
        """A malformed line before the last one raises an error, and the file is not changed."""
        directory = RunDirectory(tmp_path)
        broken = '{"iteration": 0}\n{"iteration": {"a": 1}\n{"iteration": 2}\n'
        directory.metrics.write_text(broken)
        with pytest.raises(ResultsError, match=r"metrics\.jsonl: line 2 is not a JSON object"):
            directory.truncate(1)
        assert directory.metrics.read_text() == broken


class TestChanges:
    """`--resume` with other settings, or with other files at its paths."""

    def resume(self, run: Path, *overrides: str) -> list[str]:
        """Return the lines that a start with these changes prints, without times."""
        said = io.StringIO()
        config = load_config(run / "config.yaml", list(overrides))
        record_start(RunDirectory(run), config, TrainingConsole(said))
        lines = [line.partition(" ")[2] for line in said.getvalue().splitlines()]
        return [line for line in lines if not line.startswith("hashing games and model")]

    def test_each_changed_setting_is_said_once(self, run: Path) -> None:
        assert self.resume(run) == []
        changed = ("learner.lr=5e-4", "iterations=7")
        assert self.resume(run, *changed) == [
            f"changed since the run was last started: {change}"
            for change in (
                "iterations 160 -> 7",
                "learner.lr 1e-06 -> 0.0005",
            )
        ]
        assert self.resume(run, *changed) == []

    def test_games_and_model_may_move(self, run: Path, tmp_path: Path) -> None:
        """Moved games and models are accepted if their files are the same."""
        self.resume(run)
        config = load_config(run / "config.yaml", [])
        games, model = tmp_path / "moved", tmp_path / "model"
        shutil.copytree(str(config.env.data), games)
        shutil.copytree(str(config.model.model_path), model)
        moved = (f"env.data={games}", f"model.model_path={model}")
        lines = self.resume(run, *moved)
        assert lines[0].endswith(f'-> "{games}" (the same games)')
        assert lines[1].endswith(f'-> "{model}" (the same model)')
        (game,) = sorted(games.glob("json_2.1.1/train/*/*/game.tw-pddl"))[:1]
        game.write_text(game.read_text() + " ")
        with pytest.raises(ConfigError, match="checkpoint: other games in train"):
            self.resume(run, *moved)
        shutil.rmtree(game.parents[1])
        with pytest.raises(ConfigError, match="checkpoint: other games in train"):
            self.resume(run, *moved)
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
        with pytest.raises(ConfigError, match=r"checkpoint: another model in model\.model_path"):
            self.resume(run, f"model.model_path={model}")

    def test_the_outputs_of_the_critic_are_fixed(self, run: Path) -> None:
        """`vetta` needs one more output; the other estimators can be exchanged for each other."""
        head = ("learner.critic=head", "algorithm.estimator=ppo")
        self.resume(run)
        (RunDirectory(run).started).unlink()
        self.resume(run, *head)
        assert self.resume(run, head[0], "algorithm.estimator=ppo_tokens")
        with pytest.raises(ConfigError, match=r'estimator changed: "ppo_tokens" -> "vetta"'):
            self.resume(run, head[0], "algorithm.estimator=vetta")

    def test_more_splits_can_be_evaluated(self, run: Path) -> None:
        self.resume(run, "evaluation.splits=[valid_seen]")
        (line,) = self.resume(run)
        assert line.endswith('evaluation.splits ["valid_seen"] -> ["valid_seen", "valid_unseen"]')

    @pytest.mark.parametrize(
        "change",
        [
            "model.lora_rank=4",
            "model.lora_alpha=4",
            "learner.critic=head",
            "env.train_split=valid_seen",
        ],
    )
    def test_what_the_checkpoint_depends_on_is_fixed(self, run: Path, change: str) -> None:
        """The error names the setting and its old value, also on a second attempt."""
        self.resume(run)
        key, _, value = change.partition("=")
        fits = [change, "algorithm.estimator=ppo"] if value == "head" else [change]
        for _ in range(2):
            with pytest.raises(ConfigError) as refused:
                self.resume(run, *fits)
            assert f"checkpoint: {key} changed: " in str(refused.value)
            assert str(run / "config.yaml") in str(refused.value)
            assert "\n" not in str(refused.value)


def test_the_servers_of_a_trial_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's servers are deleted, but not those of a trial whose number has the same prefix."""
    deleted: list[str] = []
    running = SimpleNamespace(applications={"hgpo-a-100-run-b": None, "hgpo-a-1000-run-c": None})
    monkeypatch.setattr(sweep.serve, "status", lambda: running)
    monkeypatch.setattr(sweep.serve, "delete", deleted.append)
    sweep.delete_applications("hgpo-a-100")
    assert deleted == ["hgpo-a-100-run-b"]
    sweep.delete_applications("hgpo-a")
    assert deleted[1:] == ["hgpo-a-100-run-b", "hgpo-a-1000-run-c"]


class TestFailedTrial:
    """The log, error.txt and the console name the reason of a failed trial."""

    def fail(self, run: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweep, "delete_applications", lambda prefix: None)
        failed = SimpleNamespace(
            config={"trial": {"path": str(run), "serve_prefix": "hgpo-test"}},
            get_pickled_error=lambda: error,
        )
        sweep.SweepCallback(1).on_trial_error(1, [failed], failed)

    def test_by_an_exception(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def stop(*_: Any) -> RunConfig:
            raise ConfigError("two\nlines")

        monkeypatch.setattr(trial, "load_config", stop)
        with pytest.raises(ConfigError):
            RunTrainable({"trial": {"path": str(run), "serve_prefix": "hgpo-test"}})
        self.fail(run, RayActorError(), monkeypatch)
        assert (run / ERROR).read_text() == "ConfigError: two lines\n"
        assert f"run failed: ConfigError: two lines; see {run / LOG}\n" in capsys.readouterr().out
        assert "Traceback" in (run / LOG).read_text()

    def test_by_a_full_disk(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """If error.txt cannot be written, no error is raised, so that the other trials continue."""
        (run / ERROR).mkdir()
        self.fail(run, OutOfMemoryError("too much"), monkeypatch)
        assert "run failed: OutOfMemoryError: too much; see" in capsys.readouterr().out

    def test_by_the_end_of_its_process(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """If a trial's process was killed, Ray's reason is written to its log and error.txt."""
        (run / LOG).touch()
        self.fail(run, OutOfMemoryError("the node\nran low on memory"), monkeypatch)
        reason = "OutOfMemoryError: the node ran low on memory"
        assert (run / ERROR).read_text() == f"{reason}\n"
        assert (run / LOG).read_text().endswith(f" failed: {reason}\n")
        assert f"run failed: {reason}; see" in capsys.readouterr().out
