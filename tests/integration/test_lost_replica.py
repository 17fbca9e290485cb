"""A replica that dies under a rollout."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.rollout.trajectories import score_groups
from tests.integration.test_algorithm import step_logp

pytestmark = pytest.mark.integration


def replica_processes(algorithm: HGPO) -> list[int]:
    """Ids of the processes that Serve has named after the algorithm's application."""
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if (folder / "cmdline").exists()
        and f"ServeReplica:{algorithm.config.serve_app}:" in (folder / "cmdline").read_text()
    ]


def test_a_killed_replica_costs_no_step(algorithm: HGPO) -> None:
    """Its prompts are asked again, of a new one that answers under the present weights."""
    algorithm.train()  # the present weights are not those that a replica starts with
    (replica,) = replica_processes(algorithm)

    def kill() -> None:
        while not algorithm.env_runner.prompts_in_flight:
            time.sleep(0.01)
        os.kill(replica, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    groups = algorithm.env_runner.play("train", [0, 1, 2, 3], group_size=4, temperature=1.0)
    killer.join()
    assert replica_processes(algorithm) not in ([], [replica])
    scored = score_groups(groups, AlgorithmSettings())
    assert len(scored.members) == 16
    version = algorithm._published_weights().version
    for member, logp in zip(scored.members, member_logp(algorithm, scored), strict=True):
        assert set(member.get_extra_model_outputs("weight_version")) == {version}
        for mine, engine in zip(
            logp, member.get_extra_model_outputs("behaviour_logp"), strict=True
        ):
            np.testing.assert_allclose(mine, engine, atol=1e-3)


def member_logp(algorithm: HGPO, scored) -> list[list[np.ndarray]]:
    """The learner's log-probabilities of the responses, by member."""
    steps = iter(step_logp(algorithm, scored))
    return [[next(steps) for _ in range(len(member))] for member in scored.members]
