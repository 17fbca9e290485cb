"""What several unit tests share."""

import gc
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch

from env_wrappers.alfworld.generator import GenerationSpec, generate
from tests.unit.cli.command import Run

SMALL_GAMES = GenerationSpec(
    seed=0,
    splits={"train": 3, "valid_seen": 3, "valid_unseen": 3},
    task_types=(
        "pick_and_place_simple",
        "look_at_obj_in_light",
        "pick_clean_then_place_in_recep",
    ),
    rooms=("bedroom", "bathroom"),
    max_receptacles=16,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """On models so small, torch's threads would wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny model."""
    from tests.unit.learner.learner_reference import save_tiny_model  # imports RLlib

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no hub for a name that it does not have: without a network, that takes many seconds."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def hgpo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return the command."""
    return Run(capsys, monkeypatch)


@pytest.fixture(scope="session")
def generated_spec() -> GenerationSpec:
    """Return the spec of ``generated_games``."""
    return SMALL_GAMES


@pytest.fixture(scope="session")
def generated_games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an ALFWorld data directory: three small games in each of the three splits."""
    out = tmp_path_factory.mktemp("alfworld") / "data"
    generate(out, SMALL_GAMES)
    return out


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a recorded run."""
    from tests.unit.reporting.reporting_rows import make_run  # imports matplotlib

    return make_run(tmp_path / "run")


def pytest_collection() -> None:
    """Disable the garbage collector during imports, of whose time it would take a fifth."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the millions of objects that imports have created."""
    gc.freeze()
    gc.enable()
