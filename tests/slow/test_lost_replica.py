"""A replica that dies during a rollout. `pytest -m slow`."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hgpo_rllib.algorithm import HGPO
from tests.integration.conftest import algorithm, cluster, overrides, run_config
from tests.integration.test_algorithm import step_logp
from tests.integration.weights import sync

__all__ = ["algorithm", "cluster", "overrides", "run_config"]  # fixtures
pytestmark = pytest.mark.slow


def replica_processes(algorithm: HGPO) -> list[int]:
    """Return the ids of the processes of this algorithm's replicas."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if (folder / "cmdline").exists()
        and f"ServeReplica:{algorithm.config.serve_app}:" in (folder / "cmdline").read_text()
    ]


def test_a_killed_replica_costs_no_step(algorithm: HGPO) -> None:
    """The prompts of a killed replica are retried on a new one with the current weights."""
    algorithm.train()  # now the weights differ from those with which a replica starts
    (replica,) = replica_processes(algorithm)

    def kill() -> None:
        while not algorithm.env_runner.prompts_in_flight():
            time.sleep(0.01)
        os.kill(replica, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    played = algorithm.env_runner.play("train", [0, 1, 2, 3], group_size=4, temperature=1.0)
    killer.join()
    assert replica_processes(algorithm) not in ([], [replica])
    assert len(played) == 16
    version = sync(algorithm).version
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert {turn.weight_version for turn in turns} == {version}
    for mine, turn in zip(step_logp(algorithm, played), turns, strict=True):
        np.testing.assert_allclose(mine, turn.behavior_logp, atol=1e-3)
