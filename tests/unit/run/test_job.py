"""Which files a job uploads, and where it may write."""

import shutil
import zipfile
from pathlib import Path

import pytest
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from typer.testing import CliRunner

from hgpo_rllib.cli.main import app
from hgpo_rllib.config import RunConfig
from hgpo_rllib.errors import ConfigError
from hgpo_rllib.run.job import JOB_FOLDERS, check_paths_are_kept
from tests.paths import ROOT

POCKET = str(ROOT / "tuned_examples" / "alfworld_pocket.yaml")
CODE = ("hgpo_rllib", "env_wrappers", "tuned_examples")
DATA = (
    "data/alfworld/json_2.1.1/train/task/game.tw-pddl",
    "elsewhere/json_2.1.1/train/task/game.tw-pddl",
    "cache/alfworld-games-ede91c18ea/manifest.json",
    "cache/webshop-store-0a1b/.webshop-cache/index.npz",
    "cache/pocket-model-b1e4477bb3/config.json",
    "webshop/items_shuffle.json",
    "results/alfworld_pocket-20261121-165312/config.yaml",
    "results/hgpo-sweep-20261121-165312-2/01-seed=0/log.txt",
    "qwen/model-00001-of-00002.safetensors",
    "models/qwen/config.json",
    "runs/x/metrics.jsonl",
    "shared/notes.md",
    ".venv/lib/python3.11/site-packages/torch/__init__.py",
    ".git/objects/00/11",
    ".mypy_cache/3.11/x.json",
    "hgpo_rllib/__pycache__/config.cpython-311.pyc",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkout that has data, a module and a user's run file."""
    for name in (".gitignore", ".rayignore"):
        shutil.copy(ROOT / name, tmp_path)
    for name in (*DATA, "hgpo_rllib/config.py", "mine.yaml"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return tmp_path


def packed(folder: Path, target: Path) -> dict[Path, int]:
    """Return the size of each file that Ray packs from a folder, by path."""
    excludes = get_runtime_env_default_excludes()
    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(target) as archive:
        return {Path(item.filename): item.file_size for item in archive.infolist()}


def test_data_is_not_uploaded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = packed(folder, tmp_path_factory.mktemp("package") / "package.zip")
    assert {str(path) for path in found} == {
        ".gitignore",
        ".rayignore",
        "hgpo_rllib/config.py",
        "mine.yaml",
    }


def test_the_code_is_uploaded_whole_and_is_small(tmp_path: Path) -> None:
    found = packed(ROOT, tmp_path / "package.zip")
    here = {
        path.relative_to(ROOT)
        for name in CODE
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(here) > 100
    assert here <= found.keys()
    assert not {"tests", "docs", ".git", ".venv"} & {path.parts[0] for path in found}
    assert sum(found.values()) < 3 * 2**20


def run_config(**paths: str) -> RunConfig:
    return RunConfig.model_validate(
        {"output": paths.get("output", "/out"), "cache": paths.get("cache", "/cache")}
    )


def test_a_job_writes_to_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are refused in a job's folder, which Ray deletes, and accepted elsewhere."""
    check_paths_are_kept(run_config(), output=Path("runs"))
    job = tmp_path / JOB_FOLDERS / "_ray_pkg_0a1b"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    check_paths_are_kept(run_config(), output=Path("/out"))
    with pytest.raises(ConfigError, match=r"^output: runs is in the folder of this job"):
        check_paths_are_kept(run_config(), output=Path("runs"))
    with pytest.raises(ConfigError, match=r"^docs: docs is in the folder of this job"):
        check_paths_are_kept(run_config(), output=Path("/out"), docs=Path("docs"))
    with pytest.raises(ConfigError, match=r"^cache: data is in the folder of this job"):
        check_paths_are_kept(run_config(cache="data"), output=Path("/out"))
    unused = run_config(cache="data").model_copy(
        update={
            "env": RunConfig().env.model_copy(update={"data": "/games"}),
            "model": RunConfig().model.model_copy(update={"model_path": "/model"}),
        }
    )
    check_paths_are_kept(unused, output=Path("/out"))


@pytest.mark.parametrize(
    "command",
    [
        ["train", POCKET, "cache=/cache"],
        ["sweep", POCKET, "cache=/cache", "--grid", "algorithm.weight_alpha=0,1"],
        ["sft", POCKET, "steps.jsonl", "output", "model.model_path=/model"],
        ["evaluate", "--agent", "oracle", "--env", "textcraft"],
    ],
    ids=lambda command: command[0],
)
def test_the_commands_refuse_to_lose_results(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command fails before it writes any file."""
    job = tmp_path / JOB_FOLDERS / "_ray_pkg_0a1b"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, ConfigError), done.output
    assert "output: " in str(done.exception)
    assert "is in the folder of this job" in str(done.exception)
    assert not list(job.iterdir())
