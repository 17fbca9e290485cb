"""One Ray cluster, one set of small games, one small clone and one algorithm for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from xdist.scheduler import LoadScopeScheduling

from hgpo_rllib.algorithm import HGPO, HGPOConfig
from hgpo_rllib.config import RunConfig, load_config
from hgpo_rllib.policy_server import server
from hgpo_rllib.policy_server.replicas import Replicas
from hgpo_rllib.reporting.console import TrainingConsole
from hgpo_rllib.run.cluster import ray_cluster
from hgpo_rllib.run.trainer import prepare_inputs
from tests.integration.browser import Browser
from tests.paths import ROOT

# Files that use the fixture `algorithm`, which takes more than a minute to start. A file that is
# missing here passes as well, but starts another.
SHARED_CLUSTER = (
    "test_algorithm",
    "test_credit",
    "test_doctor",
    "test_env_runners",
    "test_evaluate",
    "test_gateway",
    "test_gpu_transports",
    "test_hierarchies",
    "test_learner_group",
    "test_live_metrics",
    "test_mixture",
    "test_own_engine",
    "test_own_environment",
    "test_ports",
    "test_readme",
    "test_schedules",
    "test_small_cluster",
    "test_weight_updates",
)
# They start first, so that no process waits for the other's long file at the end.
LONG_FILES = (
    "test_algorithm",
    "test_command",  # has its own model, so it does not wait for that of the others
    "test_sweep",
    "test_jobs",
    "test_placement",
    "test_serve",
    "test_two_learners",
)
EXAMPLE = ROOT / "tuned_examples" / "alfworld_pocket.yaml"
SMALL = (
    "iterations=2",
    "games.train=6",
    "games.valid_seen=3",
    "games.valid_unseen=3",
    # Easy games, so that a clone trained for few steps wins some, and there is something to learn.
    "env.max_steps=15",
    "games.rooms=[bathroom]",
    "games.max_receptacles=12",
    "games.task_types=[pick_and_place_simple]",
    "env.options.task_types=[pick_and_place_simple]",
    "warm_start.games=48",
    "warm_start.demonstrations=2",
    "warm_start.max_steps=30",
    "warm_start.random_moves=0.6",
    "warm_start.exercise_steps=0",
    "warm_start.optimizer_steps=600",
    "rollout.groups_per_iteration=4",
    "rollout.group_size=4",
    "learner.minibatch_size=64",
    "evaluation.interval=0",
    "evaluation.episodes=3",
)

# Ray's workers have a low priority by default. On two cores, engines would hardly run beside the
# learner, or while the other process clones a model.
os.environ |= {"RAY_worker_niceness": "0"}


class FileScheduling(LoadScopeScheduling):
    """Let one process run all tests of a file, or of all files in `SHARED_CLUSTER`."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        return "shared cluster" if file in SHARED_CLUSTER else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Replace the scheduler that ``--dist`` names."""
    config.option.loadscopereorder = False  # by number of tests; see `LONG_FILES`
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of `LONG_FILES` to the front."""
    order = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Return a browser with a profile of its own."""
    return Browser(tmp_path / "profile")


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of the pocket example that make a run of seconds, with files of its own.

    All processes of pytest-xdist share the folder.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "integration"
    return [*SMALL, f"cache={folder / 'cache'}", f"output={folder / 'runs'}"]


@pytest.fixture(scope="session")
def run_config(overrides: list[str]) -> RunConfig:
    """A small run with generated games and a hastily cloned pocket model."""
    config = load_config(EXAMPLE, overrides)
    folder = Path(config.cache)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):  # another process may be making the same files
        return prepare_inputs(config, TrainingConsole())


@pytest.fixture
def arguments(run_config: RunConfig, overrides: list[str], tmp_path: Path) -> list[str]:
    """Arguments of `hgpo train` for a small run on the games and the model that are there."""
    return [
        str(EXAMPLE),
        *overrides,
        f"output={tmp_path}",
        f"env.data={run_config.env.data}",
        f"model.model_path={run_config.model.model_path}",
    ]


@pytest.fixture(scope="session")
def cluster(run_config: RunConfig) -> Iterator[None]:
    """A local Ray with Serve."""
    with ray_cluster(run_config):
        yield


@pytest.fixture(scope="session")
def algorithm(run_config: RunConfig, cluster: None) -> Iterator[HGPO]:
    """The algorithm with its policy server; tests share it and go on where the last one left it.

    Its engine can constrain actions, and its agents do not ask for it.
    """
    config = HGPOConfig.from_run_config(run_config).training(constrain_actions=True)
    algorithm = config.build_algo()
    algorithm.env_runner.grammars = None
    yield algorithm
    algorithm.stop()


@pytest.fixture
def shared_server(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the policy server of `algorithm` wherever this process would start one, to save half a
    minute. The model and the token limits are the same, and a request loads the weights it needs.
    """
    app, of = algorithm.config.serve_app, Replicas.of
    assert app is not None
    monkeypatch.setattr(Replicas, "of", lambda _, max_outage_s: of(app, max_outage_s))
    monkeypatch.setattr(server.serve, "run", lambda *_, **__: None)
