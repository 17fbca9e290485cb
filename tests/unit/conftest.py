"""Fixtures of several unit tests."""

import gc
import signal
from collections.abc import Iterator
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


@pytest.fixture
def signals() -> Iterator[None]:
    """Use the default SIGINT handler, as Tune leaves another one behind; restore it afterwards."""
    handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Use one thread, as on small models torch's threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny model."""
    from tests.unit.learner.learner_reference import save_tiny_model  # imports RLlib

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not query the hub, as a query without a network takes many seconds."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def hgpo(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `hgpo` in this process."""
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


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the WebShop data directory of a small store, which no test may change."""
    from tests.unit.env_wrappers.webshop.webshop_store import write_store

    return write_store(tmp_path_factory.mktemp("webshop") / "data")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a recorded run."""
    from tests.unit.reporting.reporting_rows import make_run  # imports matplotlib

    return make_run(tmp_path / "run")


def pytest_collection() -> None:
    """Disable the garbage collector during imports, where it takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the objects that imports created from garbage collection."""
    gc.freeze()
    gc.enable()
