"""A replica that dies under a rollout, and weights that come from another node's memory."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ray.exceptions import RayTaskError

from hgpo_rllib.algorithm import HGPO
from hgpo_rllib.config import AlgorithmSettings
from hgpo_rllib.policy_server import transfer
from hgpo_rllib.policy_server.transfer import WEIGHTS_FILE, this_node, weights_here
from hgpo_rllib.policy_server.types import WeightTag
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


class TestWeightsOfAnotherNode:
    """Ray copies from this node here, too: only the name that the node has is changed."""

    @pytest.fixture(autouse=True)
    def elsewhere(self, cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tag = WeightTag("v", str(tmp_path / "published"), this_node())
        monkeypatch.setattr(transfer, "this_node", lambda: "another node")
        monkeypatch.setattr(transfer, "SHARED_MEMORY", tmp_path / "memory")
        monkeypatch.setattr(transfer, "PIECE", 1000)
        (tmp_path / "memory").mkdir()
        (tmp_path / "published").mkdir()

    def test_are_copied_whole_and_removed(self, tmp_path: Path) -> None:
        content = np.random.default_rng(0).bytes(10_500)
        (tmp_path / "published" / WEIGHTS_FILE).write_bytes(content)

        async def copy() -> tuple[str, bytes]:
            async with weights_here(self.tag) as path:
                return path, (Path(path) / WEIGHTS_FILE).read_bytes()

        path, copied = asyncio.run(copy())
        assert copied == content
        assert Path(path).parent == tmp_path / "memory"
        assert not Path(path).exists()

    def test_that_are_gone_leave_nothing_behind(self, tmp_path: Path) -> None:
        async def copy() -> None:
            async with weights_here(self.tag):
                pass

        with pytest.raises(RayTaskError, match="FileNotFoundError"):
            asyncio.run(copy())
        assert not list((tmp_path / "memory").iterdir())
