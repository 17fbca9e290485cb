"""Shared Ray cluster, games, model and algorithm of the integration tests."""

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
# missing here and in `CLUSTER_ONLY` works too, but starts another algorithm or cluster.
SHARED_CLUSTER = (
    "test_algorithm",
    "test_credit",
    "test_doctor",
    "test_env_runners",
    "test_evaluate",
    "test_gateway",
    "test_hierarchies",
    "test_mixture",
    "test_own_environment",
    "test_ports",
    "test_readme",
    "test_schedules",
)
# Files that use `cluster` and not `algorithm`; the process that is free first runs them last.
CLUSTER_ONLY = (
    "test_gpu_transports",
    "test_learner_group",
    "test_live_metrics",
    "test_own_engine",
    "test_small_cluster",
    "test_weight_updates",
)
# These files start first, so that at the end no process waits for a long file of another.
LONG_FILES = (
    "test_algorithm",
    "test_command",  # has its own model, so it does not wait for the shared one
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
    # Easy games, so that a clone trained for few steps wins some and learning has a signal.
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

# Ray's workers have a low priority by default. On two cores, engines would hardly run while the
# learner computes or another process clones a model.
os.environ |= {"RAY_worker_niceness": "0"}


class FileScheduling(LoadScopeScheduling):
    """Let one process run all tests of a file, of `SHARED_CLUSTER` or of `CLUSTER_ONLY`."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        for files in (SHARED_CLUSTER, CLUSTER_ONLY):
            if file in files:
                return files[0]
        return file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Replace the scheduler that ``--dist`` names."""
    config.option.loadscopereorder = False  # would sort by number of tests; see `LONG_FILES`
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of `LONG_FILES` to the front, and those of `CLUSTER_ONLY` to the end."""
    order = {name: place for place, name in enumerate(LONG_FILES)}
    order |= dict.fromkeys(CLUSTER_ONLY, len(order) + 1)
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG_FILES)))


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    """Return a browser with its own profile."""
    return Browser(tmp_path / "profile")


@pytest.fixture(scope="session")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return overrides of the pocket example for a run of seconds.

    All processes of pytest-xdist share the folder.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "integration"
    return [*SMALL, f"cache={folder / 'cache'}", f"output={folder / 'runs'}"]


@pytest.fixture(scope="session")
def run_config(overrides: list[str]) -> RunConfig:
    """Return the settings of a small run, with generated games and a cloned pocket model."""
    config = load_config(EXAMPLE, overrides)
    folder = Path(config.cache)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):  # another process may be making the same files
        return prepare_inputs(config, TrainingConsole())


@pytest.fixture
def arguments(run_config: RunConfig, overrides: list[str], tmp_path: Path) -> list[str]:
    """Return arguments of `hgpo train` for a small run with the existing games and model."""
    return [
        str(EXAMPLE),
        *overrides,
        f"output={tmp_path}",
        f"env.data={run_config.env.data}",
        f"model.model_path={run_config.model.model_path}",
    ]


@pytest.fixture(scope="session")
def cluster(run_config: RunConfig) -> Iterator[None]:
    """Start a local Ray with Serve."""
    with ray_cluster(run_config):
        yield


@pytest.fixture(scope="session")
def algorithm(run_config: RunConfig, cluster: None) -> Iterator[HGPO]:
    """Yield the algorithm with its policy server; tests share it and its state.

    Its engine can constrain actions, but its agents do not request that.
    """
    config = HGPOConfig.from_run_config(run_config).training(constrain_actions=True)
    algorithm = config.build_algo()
    algorithm.env_runner.grammars = None
    yield algorithm
    algorithm.stop()


@pytest.fixture
def shared_server(algorithm: HGPO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process use the policy server of `algorithm`, which saves half a minute per start.

    The model and the token limits are the same, and a request loads the weights it needs.
    """
    app, of = algorithm.config.serve_app, Replicas.of
    assert app is not None
    monkeypatch.setattr(Replicas, "of", lambda _, max_outage_s: of(app, max_outage_s))
    monkeypatch.setattr(server.serve, "run", lambda *_, **__: None)
